"""The tuner of AWS's network plugin: its tables by hand, its polygons by half planes, and where it chooses."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nccl_machines import twin_of

from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.log.log import Log, Processes
from fabrictwin.nccl.log.log_init import Scene, initialisation
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol
from fabrictwin.nccl.tuning.aws_tuner import Region, RegionTuner, plugin_tuner
from fabrictwin.nccl.tuning.tuner import Call, Tuner, tuner

A, P = Algorithm, Protocol
MIB = 1 << 20
WAYS = {(a, p) for a in Algorithm for p in Protocol}
B200, P5 = "p6-b200-48xlarge", "p5-48xlarge"


def regions(instance: str, ranks: int, nodes: int, release: str = "2.27.7", **given: str) -> RegionTuner | None:
    return plugin_tuner(read_settings(given, release=release), instance, ranks, nodes)


def taken(found: RegionTuner | None, nbytes: int, collective: str = "AllReduce", ways=WAYS) -> str:
    chosen = None if found is None else found.choose(collective, nbytes, ways)
    return "" if chosen is None else f"{chosen[0][0].name} {chosen[0][1].name} {chosen[1]}"


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_point_is_inside_where_half_planes_say_so(x: int, y: int) -> None:
    corners = ((5.0, 4.0), (31.0, 2.0), (36.0, 20.0), (18.0, 33.0), (3.0, 15.0))
    sides = zip(corners, corners[1:] + corners[:1], strict=True)
    inside = all((bx - ax) * (y - ay) - (by - ay) * (x - ax) >= 0 for (ax, ay), (bx, by) in sides)
    assert Region((A.TREE, P.LL), corners).holds((x, y)) == inside


def test_a_line_holds_what_lies_on_it_alone() -> None:
    line = Region((A.NVLS_TREE, P.SIMPLE), ((10.0, 16.0), (90.0, 16.0), (10.0, 16.0)))
    held = [line.holds(at) for at in ((10.0, 16.0), (50.0, 16.0), (91.0, 16.0), (50.0, 17.0))]
    assert held == [True, True, False, False]


def test_the_tables_choose_as_their_corners_say() -> None:
    four = regions(B200, 32, 4)
    # 1.16, eight GPUs of each host: LL to 256 KiB, rings with Simple beyond those with LL128
    assert [taken(four, size) for size in (8, 256 * 1024, 256 * 1024 + 8, 256 * MIB, 1024 * MIB)] == [
        "TREE LL 0", "TREE LL 0", "TREE LL128 0", "RING LL128 0", "RING SIMPLE 0",
    ]  # fmt: skip
    assert taken(regions(B200, 32, 4, "2.28.9"), 256 * MIB) == "NVLS_TREE SIMPLE 0"
    # p5 never takes LL
    assert taken(regions(P5, 32, 4), 8) == "TREE LL128 0"
    # one GPU of each host
    assert taken(regions(B200, 4, 4), 1024, "AllGather") == "PAT SIMPLE 1"


def test_what_nccl_could_not_run_is_passed_over() -> None:
    found = regions(B200, 32, 4, "2.28.9")
    assert taken(found, 256 * MIB, ways=WAYS - {(A.NVLS_TREE, P.SIMPLE)}) == ""
    assert taken(found, 8, "Broadcast") == ""


@pytest.mark.parametrize(
    ("instance", "ranks", "nodes", "release", "given"),
    [
        (P5, 16, 2, "2.27.7", {}),  # two hosts are NCCL's
        (P5, 32, 8, "2.27.7", {}),  # four GPUs of a host have no table
        (P5, 33, 4, "2.27.7", {}),
        ("p4de-24xlarge", 32, 4, "2.27.7", {}),
        (P5, 32, 4, "2.26.6", {}),  # before the plugin brought it along
        (P5, 32, 4, "2.27.7", {"NCCL_TUNER_PLUGIN": "none"}),
        (P5, 32, 4, "2.27.7", {"NCCL_TUNER_PLUGIN": "libexample.so"}),
        (P5, 32, 4, "2.21.5", {"NCCL_TUNER_PLUGIN": "ofi"}),
    ],
)
def test_elsewhere_nccl_chooses(
    instance: str, ranks: int, nodes: int, release: str, given: dict[str, str]
) -> None:
    assert regions(instance, ranks, nodes, release, **given) is None


def test_naming_it_loads_it_earlier() -> None:
    assert regions(P5, 32, 4, "2.22.3", NCCL_TUNER_PLUGIN="/opt/amazon/lib/libnccl-ofi-tuner.so") is not None
    notes = read_settings({"NCCL_TUNER_PLUGIN": "libexample.so"}).notes
    assert "does not play" in str(notes[0])
    assert not read_settings({"NCCL_TUNER_PLUGIN": "none"}).notes


def payload(nbytes: int, channels: int, nodes: int) -> float:
    """Bytes of a tree's chunk, by the plugin's words: 576,000 halved while rounds are few, whole grains of it."""
    steps = 1 + math.floor(math.log2(nodes)) + 0.8
    chunk = 576000
    while nbytes // (channels * chunk) < steps * 8 and chunk > 131072:
        chunk //= 2
    while nbytes // (channels * chunk) < steps * 2 and chunk > 32768:
        chunk //= 2
    return chunk // 1920 * 1920


@given(st.integers(4 * MIB, 32 * MIB), st.sampled_from((4, 8, 16)))
def test_trees_of_b200_get_the_channels_of_the_largest_chunk(nbytes: int, nodes: int) -> None:
    found = regions(B200, 8 * nodes, nodes)
    assert found is not None
    chosen = found.choose("AllReduce", nbytes, {(A.TREE, P.LL128)})
    if chosen is not None:
        largest = max(payload(nbytes, count, nodes) for count in (16, 24, 32))
        assert chosen[1] == max(c for c in (16, 24, 32) if payload(nbytes, c, nodes) == largest)


def test_a_communicator_of_four_hosts_goes_by_it_and_says_so() -> None:
    def choices(**given: str) -> tuple[list[str], str]:
        settings = read_settings(given, release="2.27.7")
        made = initialise(twin_of(B200, 4, "ethernet"), settings=settings, version="2.27.7")
        chooses: Tuner = tuner(made)
        found = [chooses.choose(Call("AllReduce", size)) for size in (256 * 1024, 1024 * MIB)]
        out = io.StringIO()
        scene = Scene(made, made.settings, Transports(made), Processes(made), chooses)
        Log(read_settings({"NCCL_DEBUG": "INFO"}, release="2.27.7"), scene.processes, out).write(
            initialisation(scene)
        )
        return [f"{one.algorithm.name} {one.protocol.name}" for one in found], out.getvalue()

    ours, log = choices()
    assert ours == ["TREE LL", "RING SIMPLE"]
    assert "TUNER/Plugin: Using tuner plugin nccl_ofi_tuner" in log
    assert "NET/OFI Region base Tuner is chosen for platform: p6-b200.48xlarge" in log
    assert "NET/OFI Tuner init: comm with 32 ranks and 4 nodes." in log
    off, log = choices(NCCL_TUNER_PLUGIN="none")
    assert off == ["TREE LL128", "RING LL128"]
    assert "TUNER/Plugin" not in log
    # what NCCL_PROTO excludes it cannot take
    assert choices(NCCL_PROTO="LL128")[0] == ["TREE LL128", "RING LL128"]
