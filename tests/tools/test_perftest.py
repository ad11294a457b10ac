"""perftest's tools on the twin: their tables, their options, and what the figures are made of."""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.capture.flow_summary import summarise
from fabrictwin.capture.reader import CaptureFile
from fabrictwin.cli import root as app
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.tools.perftest.perftest_loops import play
from fabrictwin.tools.perftest.perftest_options import TESTS, PerftestOptions
from fabrictwin.tools.perftest.perftest_text import as_json, text
from fabrictwin.twin import Twin

MEASURED = Path(__file__).parents[2] / "validation" / "perftest.csv"
RATES = {"EDR": "100 Gb/s", "HDR": "200 Gb/s", "NDR": "400 Gb/s"}
SWITCH = {"EDR": "qm8700", "HDR": "qm8700", "NDR": "qm9700"}
HOST = {"EDR": "pcie-box-100g", "HDR": "pcie-box", "NDR": "dgx-h100"}
US = 1e6


def chain(technology: str, rate: str, switches: int, host: str, switch: str) -> dict:
    """Two hosts with so many switches between them, as a spec."""
    nic = catalog.host(host).nics[0].hca
    names = [f"s{i}" for i in range(switches)]
    ends = [f"a/{nic}", *(f"{s}/{p}" for s in names for p in (1, 2)), f"b/{nic}"]
    cables = [f"{x} - {y} ; {rate} ; 2 m" for x, y in zip(ends[::2], ends[1::2], strict=True)]
    cluster = {
        "technology": technology,
        "hosts": [{"name": n, "type": host} for n in "ab"],
        "switches": [{"name": n, "type": switch} for n in names],
        "cables": cables,
    }
    return {"schema": 1, "name": "chain", "cluster": cluster}


@cache
def twin(technology: str, rate: str, switches: int, host: str, switch: str) -> Twin:
    spec = read_spec(chain(technology, rate, switches, host, switch))
    return Twin(build(spec.cluster, spec=spec))


def roce(switches: int = 1) -> Twin:
    return twin("ethernet", "100 Gb/s", switches, "pcie-box-100g", "sn2700")


def infiniband(speed: str, switches: int) -> Twin:
    return twin("infiniband", RATES[speed], switches, HOST[speed], SWITCH[speed])


def run(t: Twin, test: str, **options):
    return play(t, PerftestOptions(test=test, source="a", target="b", **options))


def parts_ps(t: Twin, payload: int, *, inline: bool) -> float:
    """Add up the time of one small WRITE by the catalog, from the post to the receiver's memory.

    The driver's post, doorbell and processing by the adapter; PCIe, root port and memory at either end; cables
    with their FEC; switches; the poll. A packet is whole before it leaves a port that is faster than the one it
    came by, and before an adapter or memory takes it.
    """
    fabric = t.fabric
    nic = catalog.nic(catalog.host(t.blueprint.hosts[0].type).nics[0].type)
    adapters = [0, len(fabric.nic_node) // 2]
    near = []
    for adapter in adapters:  # the processor whose PCIe is the adapter's
        node = int(fabric.nic_node[adapter])
        host = int(fabric.node_host[node])
        span = range(int(fabric.host_node_start[host]), int(fabric.host_node_start[host + 1]))
        near.append(next(n for n in span if fabric.node_kind[n] == NodeKind.CPU))
    from fabrictwin.fabric.memory_paths import PathFinder

    finder = PathFinder(fabric, t.routes)
    ids = [np.array([n], np.int32) for n in (near[0], fabric.nic_node[adapters[0]])]
    out = finder.inside(*ids)[1]
    ids = [np.array([n], np.int32) for n in (fabric.nic_node[adapters[1]], near[1])]
    into = finder.inside(*ids)[1]
    wires, _ = t.routes.walk(np.array([adapters[0]], np.int32), np.array([adapters[1]], np.int32))
    walk = int(fabric.port_latency_ps[out].sum() + fabric.node_latency_ps[fabric.port_node[out[1:]]].sum())
    processor = catalog.chip(fabric.type_names[int(fabric.node_type[near[0]])])
    root = processor.latency.value / 2
    ps = nic.post.value + nic.doorbell.value + nic.processing.value  # the work request comes with the doorbell
    if not inline:
        ps += 2 * walk + 2 * root + processor.memory_latency.value  # payload is asked for and comes
    ps += int(fabric.port_latency_ps[wires].sum() + fabric.port_latency_ps[into].sum())
    passed = [*fabric.port_node[wires[1:]], *fabric.port_node[into[1:]]]
    ps += sum(int(fabric.node_latency_ps[n]) for n in passed)
    ps += root + processor.memory_latency.value + nic.poll.value
    overhead = 26 if fabric.technology == "infiniband" else 82
    wire = payload + (-payload & 3) + overhead + 16
    ps += wire * 8e12 / int(fabric.port_rate_bps[wires[-1]])
    ps += payload * 8e12 / int(fabric.port_payload_bps[into[-1]])
    return ps + nic.processing.value


@pytest.mark.parametrize("switches", [0, 1, 3])
@pytest.mark.parametrize("speed", list(RATES))
def test_latency_at_2_bytes_is_the_sum_of_catalog_parts(speed, switches):
    t = infiniband(speed, switches)
    row = run(t, "ib_write_lat", size=2, iterations=5).rows[0]
    assert row.least == row.most  # nothing varies on an idle fabric
    assert row.typical == pytest.approx(parts_ps(t, 2, inline=True), abs=300)  # of picoseconds
    slow = run(t, "ib_write_lat", size=2, iterations=5, inline=0).rows[0]
    assert slow.typical == pytest.approx(parts_ps(t, 2, inline=False), abs=300)


@pytest.mark.parametrize("switches", [0, 1, 3])
@pytest.mark.parametrize("speed", list(RATES))
def test_bandwidth_at_1_mib_is_what_headers_and_pcie_leave_of_the_link(speed, switches):
    t = infiniband(speed, switches)
    row = run(t, "ib_write_bw", size=1 << 20, iterations=200).rows[0]
    fabric = t.fabric
    packets = (1 << 20) // 4096
    wire = (1 << 20) + packets * 26 + 16
    link = int(fabric.port_rate_bps[fabric.nic_port[0]]) * (1 << 20) / wire
    pcie = min(int(bps) for bps, kind in zip(fabric.port_payload_bps, fabric.port_kind, strict=True) if kind == 1)
    # the first message's latency is in the average, of 200
    assert row.average_bps == pytest.approx(min(link, pcie), rel=0.02)
    assert row.average_bps <= min(link, pcie)
    assert row.peak_bps >= row.average_bps


def test_100g_roce_bandwidth_is_within_15_percent_of_published_points():
    rows = list(csv.DictReader(line for line in MEASURED.open() if line[0] != "#"))
    points = [r for r in rows if r["test"] == "ib_write_bw"]
    assert len(points) == 2
    for r in points:
        got = run(roce(), "ib_write_bw", size=65536, queue_pairs=int(r["queue_pairs"] or 1), iterations=1000).rows[
            0
        ]
        assert got.average_bps / 1e9 == pytest.approx(float(r["value"]), rel=0.15)


def test_send_latency_over_a_cable_is_within_15_percent_of_published_points():
    """Two ConnectX-4 of EDR, half a metre of copper between them; nothing is fitted to these rows."""
    rows = list(csv.DictReader(line for line in MEASURED.open() if line[0] != "#"))
    points = [r for r in rows if r["test"] == "ib_send_lat" and r["mtu"] == "4096"]
    assert [int(r["bytes"]) for r in points] == [32, 1024, 4096, 32768]
    for r in points:
        got = run(infiniband("EDR", 0), "ib_send_lat", size=int(r["bytes"]), iterations=5, inline=188).rows[0]
        assert got.typical / US == pytest.approx(float(r["value"]), rel=0.15)


@pytest.mark.parametrize("test", TESTS)
def test_every_tool_prints_its_table(test):
    done = run(roce(), test, iterations=20)
    out = text(done)
    assert out.count("-" * 87) == 4
    row = out.splitlines()[-2].split()
    assert row[1] == "20"
    data = as_json(done)
    assert data["results"][0]["MsgSize"] == int(row[0])
    shown = float(row[4 if test.endswith("lat") else 3])
    key = "t_typical" if test.endswith("lat") else "BW_average"
    assert data["results"][0][key] == pytest.approx(shown, abs=0.006)


def test_reads_and_atomics_take_a_round_trip_and_writes_half_of_one():
    t = roce()
    write, send, read, atomic = (
        run(t, f"ib_{verb}_lat", iterations=10).rows[0].typical for verb in ("write", "send", "read", "atomic")
    )
    assert write < read < 3 * write
    assert abs(send - write) < 0.05 * write
    assert abs(atomic - read) < 0.3 * read


def test_both_directions_carry_twice_as_much_and_more_queue_pairs_more_small_messages():
    t = roce()
    one = run(t, "ib_write_bw", size=65536, iterations=300).rows[0]
    both = run(t, "ib_write_bw", size=65536, iterations=300, bidirectional=True).rows[0]
    assert both.average_bps == pytest.approx(2 * one.average_bps, rel=0.05)
    few = run(t, "ib_write_bw", size=8, iterations=500).rows[0]
    many = run(t, "ib_write_bw", size=8, iterations=500, queue_pairs=4).rows[0]
    # a queue pair's own rate is the catalog's, and four have four times as much
    nic = catalog.nic("connectx-5")
    assert few.messages_per_s == pytest.approx(nic.qp_message_rate.value, rel=0.05)
    assert many.messages_per_s == pytest.approx(4 * few.messages_per_s, rel=0.05)


def test_a_smaller_mtu_costs_headers():
    wide, narrow = (run(roce(), "ib_write_bw", size=65536, iterations=300, mtu=m).rows[0] for m in (4096, 1024))
    assert narrow.average_bps / wide.average_bps == pytest.approx((1024 / 1106) / (4096 / 4178), rel=0.01)


def test_all_sizes_climb_and_datagrams_end_at_the_mtu():
    sizes = [r.size for r in run(roce(), "ib_send_bw", all_sizes=True, connection="UD", iterations=50).rows]
    assert sizes == [2**k for k in range(1, 13)]
    rows = run(roce(), "ib_write_bw", all_sizes=True, iterations=5).rows
    assert [r.size for r in rows] == [2**k for k in range(1, 24)]
    assert rows[-1].average_bps > 50 * rows[0].average_bps


def test_memory_on_a_gpu_is_reached_by_its_own_path():
    t = twin("infiniband", "200 Gb/s", 1, "pcie-box", "qm8700")
    host, gpu = (run(t, "ib_write_lat", iterations=5, gpu=g).rows[0].typical for g in (None, 0))
    assert host != gpu


def test_the_command_runs_prints_json_and_captures(tmp_path):
    spec, pcap = tmp_path / "c.json", tmp_path / "c.pcapng"
    spec.write_text(json.dumps(chain("ethernet", "100 Gb/s", 1, "pcie-box-100g", "sn2700")))
    command = ["perftest", "ib_send_lat", str(spec), "--from", "a", "--to", "b", "-n", "10", "-s", "64"]
    done = CliRunner().invoke(app, [*command, "--pcap", str(pcap), "-x", "3", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["results"][0]["n_iterations"] == 10
    found = summarise(CaptureFile(pcap))
    assert found.total("icrc_errors") == found.total("gaps") == 0
    assert found.total("messages") == 2 * 20  # there and back, seen at both ends
    assert "t_typical[usec]" in CliRunner().invoke(app, command).output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"test": "ib_wrote_bw"}, "did you mean 'ib_write_bw'"),
        ({"connection": "UD"}, "RC or UC"),
        ({"test": "ib_read_lat", "connection": "UC"}, "expected RC"),
        ({"size": 4, "all_sizes": True}, "one of them"),
        ({"mtu": 1500}, "256, 512, 1024"),
        ({"iterations": 1}, "5 to"),
        ({"test": "ib_send_lat", "bidirectional": True}, "bandwidth"),
        ({"source": "c"}, "expected a host"),
        ({"device": "mlx5_9"}, "expected an adapter of a"),
        ({"gid_index": 9}, "GID index 9"),
        ({"gpu": 7}, "GPU 7"),
        ({"test": "ib_send_bw", "connection": "UD", "size": 8192}, "one packet"),
        ({"test": "ib_atomic_bw", "size": 16}, "8 bytes"),
    ],
)
def test_what_the_tools_would_refuse_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        play(roce(), PerftestOptions(**({"test": "ib_write_bw", "source": "a", "target": "b"} | options)))


ADDRESS = re.compile(
    r"^ (local|remote) address: LID (0x[0-9a-f]{2,}) QPN (0x[0-9a-f]{4}) PSN (0x[0-9a-f]{4,6})"
    r"(?: OUT (0x[0-9a-f]{2}))?(?: RKey (0x[0-9a-f]{6}) VAddr (0x[0-9a-f]{14}))?$",
    re.MULTILINE,
)


def face(test: str, **options: object) -> str:
    return text(run(infiniband("HDR", 1), test, iterations=options.pop("iterations", 5), **options))


def test_the_ends_tell_each_other_what_perftest_exchanges():
    """Perftest 4.5 prints a random psn, and keys and buffers only where the other side writes or reads."""
    write = ADDRESS.findall(face("ib_write_bw", queue_pairs=3))
    assert [row[0] for row in write] == ["local"] * 3 + ["remote"] * 3
    assert all(row[4] == "" and row[5] and row[6] for row in write)
    assert len({row[3] for row in write}) == 6, "a PSN for each end"
    assert len({row[6] for row in write}) == 6, "a buffer for each queue pair"
    assert len({row[5] for row in write}) == 2, "a region on each host"
    assert write[0][1] == "0x01"
    assert all(row[4] == "0x10" and row[5] for row in ADDRESS.findall(face("ib_read_lat")))
    for test in ("ib_send_bw", "ib_atomic_lat"):
        assert all(row[4:] == ("", "", "") for row in ADDRESS.findall(face(test)))
    assert face("ib_write_bw") == face("ib_write_bw"), "the same twin, the same numbers"


def test_the_header_has_perftests_lines():
    header = face("ib_send_bw", bidirectional=True, tx_depth=64, size=64).split("-" * 87)[1].splitlines()[2:]
    assert header == [
        " Dual-port       : OFF\t\tDevice         : mlx5_0",
        " Number of qps   : 1\t\tTransport type : IB",
        " Connection type : RC\t\tUsing SRQ      : OFF",
        " PCIe relax order: ON",
        " ibv_wr* API     : ON",
        " TX depth        : 64",
        " RX depth        : 512",
        " CQ Moderation   : 64",
        " Mtu             : 4096[B]",
        " Link type       : IB",
        " Max inline data : 0[B]",
        " rdma_cm QPs\t : OFF",
        " Data ex. method : Ethernet",
    ]
    assert " CQ Moderation   : 100" in face("ib_write_bw").splitlines()
    assert "CQ Moderation" not in face("ib_write_lat")
