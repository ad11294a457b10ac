"""What turning things off costs, beside what was published of it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.clusters import blueprint
from support.nccl_machines import communicator

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.cli.predict.validate import validate as app
from fabrictwin.nccl.topology.graph_types import Algorithm
from fabrictwin.twin import Twin
from fabrictwin.validation.published_data import find_data
from fabrictwin.validation.turned_off import FILE, Answer, answers, as_text, read_tests
from fabrictwin.validation.turned_off import Test as Question

FOLDER = find_data(None, FILE)
TESTS = read_tests(FOLDER)


@pytest.mark.second
def test_ratios_are_those_that_were_published() -> None:
    """Fitted to rows among them are NVLS's figures and what rings get of H100's NVLinks."""
    published = [test for test in TESTS if test.published is not None and test.kind != "all_to_all"]
    assert {test.what for test in published} == {"GPUDirect RDMA", "NVLS"}
    for answer in answers(published, fidelity="analytic"):
        figures = answer.test.published
        assert figures is not None
        assert answer.factor == pytest.approx(figures.factor, rel=0.08), answer.test.machine
        assert answer.on == pytest.approx(figures.on, rel=0.08), answer.test.machine
        assert answer.off == pytest.approx(figures.off, rel=0.04), answer.test.machine


@pytest.mark.second
def test_what_nobody_published_costs_what_its_mechanism_says() -> None:
    rest = {
        (a.test.what, a.test.machine): a.factor for a in answers(TESTS, fidelity="analytic") if not a.test.source
    }
    rails = {machine: factor for (what, machine), factor in rest.items() if what == "one rail of eight"}
    # of eight rails seven are left: rings lose an eighth, an NVLS tree only where its network decides
    assert rails["two DGX H100, rings"] == pytest.approx(8 / 7, rel=0.03)
    assert 1 < rails["two DGX H100, NCCL's choice"] < 8 / 7
    pxn = [factor for (what, _), factor in rest.items() if what == "PXN"]
    assert pxn[0] == pytest.approx(1.0, abs=0.01)
    assert pxn[0] < pxn[1] < pxn[2]
    sockets = {machine: factor for (what, machine), factor in rest.items() if what.startswith("NET/IB")}
    # "about a tenth" has one digit: between 0.05 and 0.15 (the costs of sockets come from other publications)
    assert 1 / 0.15 < sockets["two DGX A100, rings"] < 1 / 0.05


@pytest.mark.second
def test_rings_over_sockets_are_as_fast_as_the_busiest_proxy_thread() -> None:
    """One thread a rank sends and copies out all that the rank has between hosts, whatever the links' rate.

    The processors of both machines have one figure of TCP, so it is the ranks at the ends of rings that decide.
    NCCL's search gives DGX A100 two rings, whose four ends are four ranks: two receive only, and reading is the
    dearer part. DGX H100 gets eight rings over four ranks that do both. With links half as fast its search finds
    other rings, over all eight ranks, and those are faster.
    """
    by_machine = {(test.what, test.machine): test for test in TESTS}
    a100 = by_machine["NET/IB (sockets instead)", "two DGX A100, rings"]
    h100 = by_machine["NET/IB (sockets instead)", "two DGX H100, rings"]
    slower_links = h100.model_copy(update={"switch": "qm8700"})
    copies = [t.model_copy(update={"off": {**t.off, "NCCL_MAX_NCHANNELS": n}}) for t, n in ((a100, 2), (h100, 8))]
    asked = [a100, h100, slower_links, *copies]
    names = ("a100", "h100", "slower links", "a100's", "h100's")
    found = dict(zip(names, answers(asked, fidelity="analytic"), strict=True))
    # a link's rate is half, and shows where RDMA uses it
    assert found["h100"].on == pytest.approx(2 * found["a100"].on, rel=0.01)
    assert found["h100"].on == pytest.approx(2 * found["slower links"].on, rel=0.01)

    send, read = _thread_ns_per_byte("epyc-7742")
    assert (send, read) == _thread_ns_per_byte("xeon-8480c")
    ends = {name: _ends_of_rings(test) for name, test in zip(names[:3], asked[:3], strict=True)}
    assert [sorted(map(tuple, ends[name].T.tolist())) for name in ("a100", "h100")] == [
        [(0, 0)] * 4 + [(0, 1)] * 2 + [(1, 0)] * 2,
        [(0, 0)] * 4 + [(2, 2)] * 4,
    ]
    assert (ends["slower links"] > 0).all()
    for name, (starts, stops) in ends.items():
        busiest = float((starts * read + stops * send).max())
        assert found[name].off == pytest.approx(starts.sum() / busiest, rel=0.005), name
    assert found["a100"].off == pytest.approx(2 / read, rel=0.005)
    assert found["h100"].off == pytest.approx(4 / (send + read), rel=0.005)
    # copies of a ring go through the same ranks, so they add nothing
    assert found["a100's"].off == pytest.approx(found["a100"].off, rel=0.001)
    assert found["h100's"].off == pytest.approx(found["h100"].off, rel=0.001)


def _thread_ns_per_byte(processor: str) -> tuple[float, float]:
    """Return what a thread takes to send a byte, and to copy out one that another core received."""
    chip, far_copy = catalog.chip(processor), catalog.host_stack("linux").work.far_copy.value
    assert chip.tcp_send is not None
    assert chip.tcp_read is not None
    return 8e9 / chip.tcp_send.value, 8e9 / chip.tcp_read.value * far_copy


def _ends_of_rings(test: Question) -> np.ndarray:
    """[2, GPUs] how many of the rings that NCCL's search finds over sockets enter a host at each, and leave it."""
    twin = Twin(blueprint(test.hosts, test.host, technology="infiniband", switch=test.switch))
    ring = communicator(twin=twin, version=test.nccl, NCCL_IB_DISABLE="1").graphs[Algorithm.RING]
    intra = ring.intra[0]
    return np.stack([np.bincount(intra[:, end], minlength=intra.shape[1]) for end in (0, -1)])


def test_published_figures_of_gpudirect_are_the_sources(shared: Path) -> None:
    with (shared / "validation" / "gdr_on_off_gh200.csv").open() as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    mine = {test.kind: test.published for test in TESTS if test.published and test.what.startswith("GPUDirect")}
    for name, kind in (("All_Reduce", "all_reduce"), ("AlltoAll", "all_to_all"), ("All_Gather", "all_gather")):
        (row,) = (r for r in rows if r["op"] == name)
        figures = mine[kind]  # type: ignore[index]
        assert figures is not None
        assert (figures.on, figures.off) == (float(row["busbw_gdr"]), float(row["busbw_no_gdr"]))


def test_the_table_has_a_line_a_test_with_ratios() -> None:
    text = as_text([Answer(test, 100.0, 50.0) for test in TESTS], "flow")
    assert text.count("    2.00") == len(TESTS)
    for test in TESTS:
        assert test.machine in text


def test_the_command_prints_what_matches_and_names_what_does_not(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["collectives", "--turned-off", "--match", "4 GPUs of", "--json"])
    (one,) = json.loads(found.stdout)["tests"]
    assert one["what"] == "NVLS"
    assert one["twin"]["ratio"] == pytest.approx(1.0)
    nothing = CliRunner().invoke(app, ["collectives", "--turned-off", "--match", "teleport"])
    assert isinstance(nothing.exception, ConfigError)
    (tmp_path / FILE).write_text("tests:\n  - {what: x, machine: y, host: dgx-h100, hosts: 2, size: 1 GB/s}\n")
    with pytest.raises(ConfigError, match=rf"{FILE}:\d+ tests\[0\].size"):
        read_tests(tmp_path)
