"""Connection matrices: what is read, what is refused, and what comes out against htsim's figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import htsim_cases as cases
from support.clusters import boxes

from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.tools.traffic.connection_matrix import Traffic, read_traffic
from fabrictwin.tools.traffic.play_traffic import play_traffic

GOOD = """\
Nodes 8
Connections 4
Triggers 2
0->1 id 1 start 0 size 100000 send_done_trigger 1
2->3 id 2 start 5000000 size 100000 send_done_trigger 2
1->4 id 3 trigger 1 size 200000
1->5 id 4 trigger 2 size 5
trigger id 1 oneshot
trigger id 2 multishot
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "flows.cm"
    path.write_text(text)
    return path


def play(tmp_path, text=GOOD, **options):
    twin = boxes(8, "ethernet")
    return play_traffic(read_traffic(write(tmp_path, text)), twin.fabric, twin.routes, options_with(**options))


def test_flows_start_when_told_or_triggered(tmp_path):
    result = play(tmp_path)
    post = 1  # a flow's clock starts before its doorbell
    assert result.start_ps[0] == 0 * post
    assert result.start_ps[1] == 5_000_000
    assert result.start_ps[2] == result.done_ps[0]
    assert result.start_ps[3] == result.done_ps[1]
    assert (result.completion_ps > 0).all()


def test_an_uncontended_flow_has_no_slowdown(tmp_path):
    text = "Nodes 8\nConnections 2\n0->1 id 1 start 0 size 100000\n2->7 id 2 start 0 size 9\n"
    result = play(tmp_path, text)
    assert result.completion_ps.tolist() == result.unloaded_ps.tolist()
    assert result.summary()["slowdown"]["max"] == 1.0


# two that wait for what the first two pull
WAITING = """Nodes 8
Connections 4
0->1 id 1 start 0 size 1000000 send_done_trigger 1
0->2 id 2 start 0 size 1000 send_done_trigger 1
3->4 id 3 trigger 1 size 100
3->5 id 4 trigger 1 size 100
"""


def test_a_multishot_trigger_lets_one_more_in_each_time(tmp_path):
    result = play(tmp_path, WAITING + "trigger id 1 multishot\n")
    # the short flow ends first and starts the first that waits
    assert result.start_ps[2] == result.done_ps[1]
    assert result.start_ps[3] == result.done_ps[0]


def test_a_barrier_waits_for_all(tmp_path):
    result = play(tmp_path, WAITING + "trigger id 1 barrier 2\n")
    assert result.start_ps[2] == result.start_ps[3] == max(result.done_ps[:2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Nodes 8\n", ""), "flows.cm:1 Nodes: got no line 'Nodes N'"),
        (("size 5", "sizes 5"), "flows.cm:7: got 'sizes'.*did you mean 'size'"),
        (("size 5", "size -5"), "flows.cm:7 size: got '-5', expected a whole number"),
        (("1->5", "1->9"), "flows.cm:7: got node 9, expected one of the 8 nodes"),
        (("1->5", "5->5"), "flows.cm:7: got a flow from node 5 to itself"),
        (("1->5", "1>5"), "flows.cm:7: got '1>5', expected a flow such as '3->7'"),
        (("trigger 2 size 5", "size 5"), "neither or both of start and trigger"),
        (("trigger id 2 multishot", "trigger id 2 manyshot"), "flows.cm:9 trigger: got 'manyshot'.*did you mean"),
        (("trigger id 2 multishot\n", ""), "got trigger 2, which no line defines"),
        (("Connections 4", "Connections 5"), "got 4 flows, expected 5"),
        ((" size 5", ""), "flows.cm:7 size: got a flow without a size"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        read_traffic(write(tmp_path, GOOD.replace(*change)))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_traffic(tmp_path / "none.cm")


def test_more_nodes_than_adapters(tmp_path):
    with pytest.raises(ConfigError, match="got traffic for 9 nodes, expected at most the 8 adapters"):
        play(tmp_path, GOOD.replace("Nodes 8", "Nodes 9"))


def test_the_table_and_the_command_line_say_the_same(tmp_path, capsys):
    from fabrictwin.cli import main

    path = write(tmp_path, GOOD)
    spec = tmp_path / "cluster.yaml"
    spec.write_text(
        "schema: 1\nname: t\ncluster:\n  hosts: {type: pcie-box, count: 8}\n  network:\n"
        "    technology: ethernet\n    switch: spectrum-4\n    topology: {kind: single-switch}\n"
    )
    assert main(["traffic", str(path), "--cluster", str(spec), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["flows"] == 4
    assert data["bytes"] == 400_005
    assert main(["traffic", str(path), "--cluster", str(spec)]) == 0
    text = capsys.readouterr().out
    assert f"{data['completion_us']['max']:.2f}" in text
    assert main(["traffic", str(path), "--cluster", str(spec), "--dcqcn", "sigcom15", "--control", "dcqcn"]) == 2
    assert "did you mean 'sigcomm15'" in capsys.readouterr().err


def test_a_sprayed_permutation_is_above_the_floor_and_at_most_five_percent_above_htsim(tmp_path):
    pattern = cases.traffic(cases.PERMUTATION, tmp_path)
    took = cases.play(pattern, *cases.network(16), balance="spray", control="nscc").completion_ps / 1e6
    assert 52.5 < took.mean() < 1.05 * 60.1
    assert took.max() < 1.05 * 65.5


@pytest.mark.second
def test_a_triggered_all_to_all_ends_when_htsim_says(tmp_path):
    pattern = cases.traffic(cases.ALL_TO_ALL, tmp_path)
    end = cases.play(pattern, *cases.network(8), balance="spray", control="nscc").done_ps.max() / 1e6
    assert 0.95 * 502 < end < 1.05 * 502


@pytest.mark.parametrize("technology", ["ethernet", "infiniband"])
def test_a_lossless_incast_ends_when_its_link_has_carried_it(technology, tmp_path):
    result = cases.play(cases.traffic(cases.INCAST, tmp_path), *cases.network(8, technology))
    assert 1280 < result.done_ps.max() / 1e6 < 1340
    summary = result.summary()
    assert summary["packets"]["dropped"] == 0
    assert (summary["pauses"]["frames"] > 0) == (technology == "ethernet")


@pytest.mark.second
def test_lossless_ecmp_has_its_tail_where_htsim_has_it(tmp_path):
    """The slowest of 1,024 flows depends on the hash seeds: five to seven flows on the busiest link."""
    from dataclasses import replace

    from fabrictwin.routing.engines.registry import hash_seeds

    fabric, routes = cases.network(16)
    pattern = cases.traffic(cases.PERMUTATION, tmp_path)
    longest = []
    for seed in range(10):
        seeded = replace(routes, hash_seeds=hash_seeds(fabric, seed))
        result = cases.play(pattern, fabric, seeded)
        longest.append(float(result.completion_ps.max()) / 1e6)
        assert result.summary()["packets"]["dropped"] == 0
    again = cases.play(pattern, fabric, seeded)
    assert float(again.completion_ps.max()) / 1e6 == longest[-1]
    assert 177 < np.median(longest) < 255


@pytest.mark.second
def test_a_large_incast_collapses_without_pfc_and_pauses_less_with_dcqcn(tmp_path):
    pattern = cases.traffic(cases.INCAST, tmp_path, 20_000_000)
    fabric, routes = cases.network(8)
    floor = 32 * 20_000_000 * 8 / 400e9 * 1e6

    def play_with(**options):
        result = cases.play(pattern, fabric, routes, **options)
        return result.done_ps.max() / 1e6, result.summary()

    end, lossy = play_with(lossless=False)
    assert lossy["packets"]["dropped"] > 0
    assert lossy["packets"]["retransmitted"] > 0
    assert end > 1.5 * floor
    end, pfc = play_with()
    assert pfc["packets"]["dropped"] == 0
    assert end < 1.05 * floor
    _, both = play_with(control="dcqcn", dcqcn="sigcomm15")
    assert both["packets"]["dropped"] == 0
    assert 2 * both["pauses"]["time_us"] < pfc["pauses"]["time_us"]


def test_faults_of_the_spec_count_or_are_refused(tmp_path, capsys):
    """A link that is slow from the start, or for a while, slows its flow; what only a run can play is an error."""
    from fabrictwin.cli import main

    path, took = tmp_path / "one.cm", {}
    path.write_text("Nodes 2\nConnections 1\n0->1 id 1 start 0 size 2000000\n")
    cluster = (
        "schema: 1\nname: two\ncluster:\n  hosts: {type: pcie-box, count: 2}\n  network:\n"
        "    technology: infiniband\n    topology: {kind: single-switch}\n    switch: qm8700\n"
    )
    for fault in ("", "faults:\n  - {link: host-1/mlx5_0, rate: 20 Gb/s}\n"):
        spec = tmp_path / "spec.yaml"
        spec.write_text(cluster + fault)
        assert main(["traffic", str(path), "--cluster", str(spec), "--json"]) == 0
        took[fault == ""] = json.loads(capsys.readouterr().out)["completion_us"]["max"]
    assert took[False] == pytest.approx(10 * took[True], rel=0.1)
    spec.write_text(cluster + "faults:\n  - {link: host-1/mlx5_0, rate: 20 Gb/s, at: 40 us}\n")
    assert main(["traffic", str(path), "--cluster", str(spec), "--json"]) == 0
    later = json.loads(capsys.readouterr().out)["completion_us"]["max"]
    assert took[True] * 4 < later < took[False]
    spec.write_text(cluster + "faults:\n  - {gpu: host-1/gpu0, slowdown: 2}\n")
    assert main(["traffic", str(path), "--cluster", str(spec)]) == 2
    assert "spec.yaml:10 faults[0]: got a fault that only a run plays" in capsys.readouterr().err


def test_a_pause_storm_stops_a_flow_until_it_ends(tmp_path, capsys):
    """An adapter that pauses without end holds what is sent to it; when it stops, all of it comes through."""
    from fabrictwin.cli import main

    path, spec = tmp_path / "one.cm", tmp_path / "spec.yaml"
    path.write_text("Nodes 2\nConnections 1\n0->1 id 1 start 0 size 2000000\n")
    spec.write_text(
        "schema: 1\nname: two\ncluster:\n  hosts: {type: pcie-box-100g, count: 2}\n  network:\n"
        "    technology: ethernet\n    topology: {kind: single-switch}\n    switch: spectrum-4\n"
        "faults:\n  - {pause_storm: host-1/mlx5_0, priority: 0, at: 10 us, until: 3 ms}\n"
    )
    assert main(["traffic", str(path), "--cluster", str(spec), "--json"]) == 0
    assert 3_000 < json.loads(capsys.readouterr().out)["completion_us"]["max"] < 3_500


def test_the_spec_says_how_the_network_is_modelled_and_options_override_it(tmp_path, capsys):
    """`run.packet` counts: an acknowledgement a packet, a limit of memory; `--ack-every` goes before it."""
    from fabrictwin.cli import main

    path, spec = tmp_path / "one.cm", tmp_path / "spec.yaml"
    path.write_text("Nodes 2\nConnections 1\n0->1 id 1 start 0 size 2000000\n")
    cluster = (
        "schema: 1\nname: two\ncluster:\n  hosts: {type: pcie-box, count: 2}\n  network:\n"
        "    technology: infiniband\n    topology: {kind: single-switch}\n    switch: qm8700\n"
    )

    def hops(section: str, *more: str) -> int:
        spec.write_text(cluster + f"run:\n  fidelity: packet\n  packet: {section}\n")
        assert main(["traffic", str(path), "--cluster", str(spec), "--json", *more]) == 0
        return int(json.loads(capsys.readouterr().out)["packets"]["hops"])

    packets = 489
    assert hops("{ack_every: 1}") == 4 * packets
    assert hops("{ack_every: 1}", "--ack-every", "256") == 2 * packets + 2 * 2
    lanes = "{virtual_lanes: 2, service_level: 3, vl_high: '1:64', vl_low: '0:64', ack_every: 1}"
    assert hops(lanes, "--service-level", "0") == 4 * packets
    spec.write_text(cluster + "run:\n  fidelity: packet\n  packet: {memory_limit: 64 KiB}\n")
    assert main(["traffic", str(path), "--cluster", str(spec)]) == 2
    assert "the limit is" in capsys.readouterr().err
    spec.write_text(cluster + "run:\n  fidelity: packet\n  packet: {virtual_lanes: 2, vl_low: '0:64'}\n")
    assert main(["traffic", str(path), "--cluster", str(spec)]) == 2
    assert "without lane 1, which would never be served" in capsys.readouterr().err


def test_what_traffic_would_hold_is_refused_with_the_figure():
    """Half a million flows: their queue pairs alone are above the limit, before any is set up."""
    fabric, routes = cases.network(4)
    n, flows = len(fabric.nic_node), 500_000
    ends = np.arange(flows, dtype=np.int32) % n
    none = np.full(flows, -1, np.int32)
    pattern = Traffic(
        nodes=n,
        source=ends,
        destination=(ends + 1) % n,
        size_bytes=np.full(flows, 64),
        start_ps=np.zeros(flows, np.int64),
        trigger=none,
        send_done=none,
        receive_done=none,
        triggers={},
    )
    with pytest.raises(ConfigError, match=r"of memory, the limit is 256 MiB: cut it"):
        play_traffic(pattern, fabric, routes, options_with(memory_limit_bytes=256 << 20))


# some flows start later than others, and meet
_LATER = [(8 * a, 8 * ((a * 5 + 3) % 16), a % 3 * 4_000_000, 300_000) for a in range(16) if (a * 5 + 3) % 16 != a]
_MEETING = [(8 * a, 0, 9_000_000, a * 10_000) for a in range(8, 16)]
DIVIDED = f"Nodes 128\nConnections {len(_LATER + _MEETING)}\n" + "".join(
    f"{a}->{b} id {i} start {at} size {size}\n" for i, (a, b, at, size) in enumerate(_LATER + _MEETING, 1)
)


def played_in(tmp_path, text=DIVIDED, **options):
    """Flows over a small fat-tree in so many parts, as times and totals."""
    fabric, routes = cases.network(8)
    path = write(tmp_path, text)
    return play_traffic(read_traffic(path), fabric, routes, options_with(**options))


def test_threads_change_no_time_and_no_count(tmp_path):
    one = played_in(tmp_path, parts=4, threads=1)
    engine = one.engine
    assert engine.network.machine.parts == 4
    for threads in (2, 3, 8):
        other = played_in(tmp_path, parts=4, threads=threads)
        assert other.summary() == one.summary()
        assert other.done_ps.tolist() == one.done_ps.tolist()
        for name, count in engine.packets.port_counters().items():
            assert other.engine.packets.port_counters()[name].tolist() == count.tolist(), name


def test_parts_are_near_the_whole_and_flows_start_when_told(tmp_path):
    whole, parts = played_in(tmp_path), played_in(tmp_path, parts=4)
    assert whole.engine.network.machine.parts == 1
    assert parts.start_ps.tolist() == whole.start_ps.tolist()
    assert parts.summary()["bytes"] == whole.summary()["bytes"]
    mean = whole.summary()["completion_us"]["mean"]
    assert parts.summary()["completion_us"]["mean"] == pytest.approx(mean, rel=0.05)
    assert parts.unloaded_ps.tolist() == whole.unloaded_ps.tolist()


def test_what_is_played_in_one_part_refuses_more(tmp_path):
    with pytest.raises(ConfigError, match="got 4 parts with transfers that start others"):
        played_in(tmp_path, WAITING.replace("Nodes 8", "Nodes 16") + "trigger id 1 multishot\n", parts=4)
    assert (played_in(tmp_path, WAITING + "trigger id 1 multishot\n").completion_ps > 0).all()


def test_the_command_line_takes_threads_and_the_spec_parts(tmp_path, capsys):
    from fabrictwin.cli import main

    path, spec = tmp_path / "one.cm", tmp_path / "spec.yaml"
    path.write_text(
        "Nodes 4\nConnections 3\n" + "".join(f"{a}->0 id {a} start 0 size 900000\n" for a in (1, 2, 3))
    )
    spec.write_text(
        "schema: 1\nname: four\ncluster:\n  hosts: {type: pcie-box, count: 4}\n  network:\n"
        "    technology: infiniband\n    topology: {kind: single-switch}\n    switch: qm8700\n"
        "run:\n  fidelity: packet\n  packet: {parts: 3}\n"
    )
    said = []
    for threads in ("1", "2"):
        assert main(["traffic", str(path), "--cluster", str(spec), "--json", "--threads", threads]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert main(["traffic", str(path), "--cluster", str(spec), "--pcap", str(tmp_path / "a.pcapng")]) == 2
    assert "got 3 parts with captures, which are played in one" in capsys.readouterr().err
