"""DCQCN tuned for a fabric: what is tried, what is called good, and that it goes on where it was."""

from __future__ import annotations

import json

import pytest
from support.clusters import boxes

from fabrictwin.base.errors import ConfigError
from fabrictwin.cli import main
from fabrictwin.cluster.spec.packet_section import Packet
from fabrictwin.engines.packet.packet_options import options_of
from fabrictwin.study.tune.dcqcn_tuning import AXES, NAMED, OTHERS, Tried, Tuned, options_at, points, section

CLUSTER = """\
schema: 1
name: t
cluster:
  hosts: {type: pcie-box, count: 8}
  network: {technology: TECHNOLOGY, switch: SWITCH, topology: {kind: single-switch}}
run: {packet: {buffer: 2 MiB}}
"""
INCAST = "Nodes 8\nConnections 5\n" + "".join(f"{i}->7 id {i} start 0 size 2000000\n" for i in range(5))


@pytest.fixture
def files(tmp_path):
    def made(technology="ethernet", switch="spectrum-4"):
        spec, traffic = tmp_path / "t.yaml", tmp_path / "t.cm"
        text = CLUSTER.replace("TECHNOLOGY", technology).replace("SWITCH", switch)
        spec.write_text(text if technology == "ethernet" else text.rsplit("run:", 1)[0])
        traffic.write_text(INCAST)
        return ["traffic", str(traffic), "--cluster", str(spec)]

    return made


def test_named_sets_come_first_and_draws_follow_from_the_seed():
    asked = points(6, 3)
    assert [point[0] for point in asked[: len(OTHERS) + len(NAMED)]] == [*OTHERS, *NAMED]
    drawn = asked[len(OTHERS) + len(NAMED) :]
    assert len(drawn) == 6 != len(set(points(6, 4)) & set(drawn))
    assert points(6, 3) == asked
    for point in drawn:
        assert all(value in axis.values for value, axis in zip(point, AXES, strict=True))


def test_a_drawn_set_is_the_engines_options_and_a_specs_lines_alike():
    twin = boxes(2, "ethernet")
    base = options_of(None, twin.fabric.technology, 1)
    packet = section(("8", "4", "0.05", "16", "55"), 400 * 10**9)
    assert packet["dcqcn"]["ecn_min"] == "400000 B"  # 8 us at 400 Gb/s
    tried = options_at(base, packet)
    assert tried == options_of(Packet.model_validate(packet), "ethernet", 1)
    found = tried.congestion.algorithm
    scale = None
    for _, one in found.sets:
        switches = one.switches(scale, 1)
        assert (switches["ecn_kmin_bytes"], switches["ecn_kmax_bytes"], switches["ecn_bps"]) == (
            400_000,
            1_600_000,
            0,
        )
        assert (one.increase.additive_mbps, one.increase.hyper_mbps, one.timers.increase) == (80, 800, 55)
        assert (one.timers.alpha, one.timers.cnp, one.g_1024) == (1, 4, 5)  # as left


def row(p99, pause):
    return {"p99_us": p99, "pause_us": pause}


def test_the_good_one_pauses_least_among_those_as_fast():
    dcqcn = {"control": "dcqcn"}
    tried = [
        Tried("pfc-only", {"control": "none"}, row(90.0, 0.0)),
        Tried("a", dcqcn, row(100.0, 50.0)),
        Tried("b", dcqcn, row(101.9, 10.0)),
        Tried("c", dcqcn, row(102.1, 0.0)),
        Tried("d", dcqcn, {"reason": "it failed"}),
    ]
    assert Tuned(tuple(tried)).good.name == "b"
    with pytest.raises(ConfigError, match="no set of parameters"):
        _ = Tuned(tuple(tried[:1] + tried[4:])).good


def test_a_tuning_goes_on_where_it_was_and_gives_the_same(files, tmp_path, capsys):
    kept = tmp_path / "kept"
    asked = [*files(), "--tune", "3", "--json"]
    assert main(asked) == 0
    whole = json.loads(capsys.readouterr().out)
    assert [one["set"] for one in whole["tried"]] == [*OTHERS, *NAMED, "drawn 8", "drawn 9", "drawn 10"]
    by = {one["set"]: one for one in whole["tried"]}
    assert by["pfc-only"]["ecn_marked"] == 0 < by["pfc-only"]["pause_us"]
    assert by["by-rate"]["ecn_marked"] > 0
    assert main([*asked, "--kept", str(kept)]) == 0
    assert json.loads(capsys.readouterr().out) == whole
    lines = kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(b"".join(lines[:5]) + lines[5][:7])  # ended while it wrote
    assert main([*asked, "--kept", str(kept)]) == 0
    assert json.loads(capsys.readouterr().out) == whole
    assert kept.read_bytes() == b"".join(lines)
    assert main([*asked, "--kept", str(kept), "--seed", "2"]) == 2  # another question
    assert "of another sweep" in capsys.readouterr().err


def test_what_is_printed_is_a_spec(files, tmp_path, capsys):
    from fabrictwin.base.yamlfile import read_yaml

    assert main([*files(), "--tune", "3"]) == 0
    printed = capsys.readouterr().out
    assert "is good" in printed
    lines = printed[printed.index("\nrun:\n") + 1 :]
    data, _ = read_yaml(lines, "printed")
    assert Packet.model_validate(data["run"]["packet"]).control == "dcqcn"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--kept", "x"], "means nothing without --tune"),
        (["--tune", "2", "--control", "none"], "means nothing with --tune"),
        (["--tune", "2", "--lossy"], "means nothing with --tune"),
    ],
)
def test_options_that_mean_nothing_together_are_refused(files, capsys, more, message):
    assert main([*files(), *more]) == 2
    assert message in capsys.readouterr().err


def test_infiniband_has_no_dcqcn_to_tune(files, capsys):
    assert main([*files("infiniband", "qm9700"), "--tune", "1"]) == 2
    assert "expected Ethernet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"ecn_min": "10 KB"}, "expected both or neither"),
        ({"ecn_min": "20 KB", "ecn_max": "10 KB"}, "not above the second"),
        ({"additive": "100 Kb/s", "hyper": "1 Mb/s"}, "whole Mb/s"),
        ({"increase_timer": "500 ns"}, "whole microseconds"),
    ],
)
def test_own_parameters_that_make_no_sense_are_refused(own, message):
    with pytest.raises(ValueError, match=message):
        Packet.model_validate({"control": "dcqcn", "dcqcn": {"like": "400g", **own}})
