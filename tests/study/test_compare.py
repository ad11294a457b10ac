"""Fabrics side by side: a preset changes the network alone, equal mechanisms give equal results."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.clusters import blueprint
from support.specs import SMALL_JOB as SPEC
from support.specs import small_job as spec

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.catalog.price_book import price_book
from fabrictwin.cli import main
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.engines.base.play import play
from fabrictwin.engines.flow.flow_engine import FlowEngine
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.program.patterns import edges
from fabrictwin.routing.engines.registry import route
from fabrictwin.study.compare import packet_measurements
from fabrictwin.study.compare.compare_page import page
from fabrictwin.study.compare.compare_text import data, text
from fabrictwin.study.compare.comparison import compare
from fabrictwin.study.compare.curves import vary, with_value
from fabrictwin.study.compare.fabrics import own_presets, preset, with_fabric
from fabrictwin.study.compare.packet_measurements import play_both
from fabrictwin.study.compare.phase_cut import HOT, SHARD_BYTES, Load, cut_of, program_of
from fabrictwin.study.compare.verdict import CLOSE, verdict
from fabrictwin.study.jitter.jitter_study import Sampler


@pytest.mark.parametrize("name", catalog.names("fabric"))
def test_a_preset_changes_the_network_and_nothing_else(tmp_path, name):
    old = spec(tmp_path).to_dict()
    new = with_fabric(spec(tmp_path), preset(name, {})).to_dict()
    assert new["workload"] == old["workload"]
    assert new["cluster"]["hosts"] == old["cluster"]["hosts"]
    assert new["cluster"]["network"]["switch"] == catalog.fabric(name).switch
    assert new["cluster"]["network"]["topology"]["kind"] == "rail-optimised"


def twins(hosts: int = 4):
    """The same hosts on InfiniBand and on Ethernet, the second's latencies, rates and headers made the first's."""
    ib = compile_fabric(blueprint(hosts, "dgx-h100", switch="qm9700", topology={"kind": "single-switch"}))
    shape = {"kind": "single-switch"}
    ethernet = compile_fabric(
        blueprint(
            hosts, "dgx-h100", technology="ethernet", switch="spectrum-4", topology=shape, link_rate="400 Gb/s"
        )
    )
    names = {ib.link_name(p): p for p in np.flatnonzero(ib.port_peer >= 0)}
    same = {ethernet.link_name(p): p for p in np.flatnonzero(ethernet.port_peer >= 0)}
    assert set(names) == set(same)
    there = np.array([same[n] for n in names])
    here = np.array([names[n] for n in names])
    payload, latency = ethernet.port_payload_bps.copy(), ethernet.port_latency_ps.copy()
    rate = ethernet.port_rate_bps.copy()
    payload[there], latency[there] = ib.port_payload_bps[here], ib.port_latency_ps[here]
    rate[there] = ib.port_rate_bps[here]
    equal = replace(
        ethernet,
        port_payload_bps=payload,
        port_latency_ps=latency,
        port_rate_bps=rate,
        node_latency_ps=np.where(ethernet.node_latency_ps > 0, ib.node_latency_ps, 0),
    )
    return ib, equal


LOAD = Load(64 << 10, 4.0, "a test's")


@pytest.mark.parametrize("phase", ["ring", "exchange"])
@pytest.mark.parametrize("fidelity", ["flow", "packet"])
def test_with_headers_latency_and_routes_equal_and_control_off_both_technologies_give_the_same(phase, fidelity):
    """One switch joins all, so that there is one way; what is left are credits against pauses."""
    took = []
    for fabric in twins():
        routes = route(fabric)
        nodes = fabric.gpu_node.astype(np.int32)
        program = program_of(phase, fabric.node_host[nodes].astype(np.int32), LOAD)
        if fidelity == "flow":
            engine = FlowEngine(fabric, routes)
        else:
            engine = PacketEngine(fabric, routes, options_with(control="none", lossless=True))
            headers = replace(engine.network.model.headers, data=32)
            engine.network.model.__dict__["headers"] = headers
        took.append(play(program, nodes, engine).end_ps)
    assert took[1] == pytest.approx(took[0], rel=0.02)


def test_the_hot_gpus_of_the_exchange_receive_as_many_times_more_as_it_says():
    program = program_of("exchange", np.repeat(np.arange(2), 8).astype(np.int32), LOAD)
    received = np.zeros(16, np.int64)
    for communication in program.communications:
        e = edges(communication.channels)
        np.add.at(received, e.target, e.size_bytes)
    assert sorted(set(received.tolist())) == [15 * (64 << 10), 4 * 15 * (64 << 10)]
    assert (received == received.max()).sum() == 4


def test_a_cut_is_scattered_by_its_seed(tmp_path):
    a, b, again = (cut_of(spec(tmp_path), seed=s).nodes.tolist() for s in (1, 2, 1))
    assert a == again != b
    assert sorted(a) == sorted(b)


def large(tmp_path, name: str, **topology):
    """A cluster that has to be cut, on a preset's network."""
    shape = {"kind": "rail-optimised", **topology}
    data = with_fabric(spec(tmp_path), preset(name, {})).to_dict()
    data["cluster"]["hosts"][0]["count"] = 96
    data["cluster"]["network"]["topology"] = shape
    return read_spec(data)


@pytest.mark.parametrize(("ratio", "up"), [(1.0, 8), (2.0, 4)])
def test_a_cut_keeps_the_oversubscription_and_the_buffer_of_a_port(tmp_path, ratio, up):
    cut = cut_of(large(tmp_path, "roce-400g", oversubscription=ratio), seed=1)
    fabric = cut.twin.fabric
    assert cut.ranks == len(set(cut.host.tolist())) == 64
    leaf = np.unique(fabric.port_node[fabric.port_peer[fabric.nic_port]])
    wired = np.bincount(fabric.port_node[fabric.port_peer >= 0], minlength=fabric.nodes)
    assert set(wired[leaf].tolist()) == {8 + up}
    whole = catalog.switch("spectrum-4")
    ports = next(m for m in whole.modes if m.speed == "400G").ports.value
    assert fabric.node_buffer_bytes[leaf] == pytest.approx(whole.buffer.value * (8 + up) / ports)


@pytest.mark.second
def test_an_incast_tells_loss_pauses_credits_and_adaptive_routing_apart(tmp_path):
    """Flow control and hashing change a burst that switches cannot hold, and rings under busy leaves."""
    load = Load(64 << 10, 4.0, "a test's")
    found = {}
    for name in ("infiniband-ndr", "roce-400g", "roce-400g-lossy", "spectrum-x-400g"):
        there = large(tmp_path, name)
        cut = cut_of(there, seed=1)
        found[name] = {phase: play_both(cut, load, phase, 1, there) for phase in ("ring", "exchange")}
    incast = {name: played["exchange"] for name, played in found.items()}
    assert incast["roce-400g-lossy"].drops > 0 < incast["roce-400g-lossy"].retransmitted
    assert incast["roce-400g"].pauses > 0 == incast["roce-400g"].drops
    assert incast["roce-400g-lossy"].factor > 5 * incast["roce-400g"].factor >= 5
    assert incast["infiniband-ndr"].factor < 1.1
    rings = {name: played["ring"].packet_ps for name, played in found.items()}
    assert rings["roce-400g"] > 1.5 * rings["spectrum-x-400g"]  # hashes that collide


def test_blocks_are_the_jobs_and_even_loads_get_the_assumed_hot_ones(tmp_path):
    job = Sampler(spec(tmp_path), lambda *_: None).job
    load = Load.of(job, 8)
    assert load.block_bytes == 1024 // 4 * 2 * 1024 * 2 // 8  # tokens of a rank, two experts, hidden size, bf16
    assert load.hot_times == 4.0
    ring = program_of("ring", np.arange(8).astype(np.int32), load)
    (channels,) = [c.channels for c in ring.communications]
    assert channels.payload_bytes.tolist() == [8 * SHARD_BYTES] * 2
    assert HOT == 4


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    names = ["infiniband-ndr", "roce-400g", "infiniband-hdr"]
    return compare(spec(tmp_path_factory.mktemp("compare")), names, book=price_book(), seeds=(1,))


def test_slower_links_never_shorten_a_step_and_never_raise_bandwidth_of_large_sizes(found):
    by = {f.name: f for f in found.fabrics}
    assert by["infiniband-hdr"].clean_ps >= by["infiniband-ndr"].clean_ps
    # small sizes go by NCCL's choice, whose model is not always right
    for size in (256 << 20, 4 << 30):
        assert by["infiniband-hdr"].busbw_gbps[size] < by["infiniband-ndr"].busbw_gbps[size]


def test_lossless_fabrics_drop_nothing_in_their_cuts(found):
    for f in found.fabrics:
        assert f.factors is not None
        assert f.factors.total("drops") == 0
        assert len(f.factors.of("ring")) == len(f.factors.of("exchange")) == 1


def test_the_verdict_names_the_fabric_with_the_shortest_step_and_says_what_it_does_not_know(found):
    said = verdict(found)
    shortest = min(found.fabrics, key=lambda f: f.steps.p50)
    assert said.answer.startswith(shortest.name)
    for f in found.fabrics:
        if f.steps.p50 <= shortest.steps.p50 * (1 + CLOSE) and f is not shortest:
            assert f.name in said.answer
    assert any("jitter is assumed" in line for line in said.unknown)
    assert any("assumptions" in line for line in said.unknown)


def _with_factors(found, name, **changes):
    fabrics = [replace(f, factors=replace(f.factors, **changes)) if f.name == name else f for f in found.fabrics]
    return replace(found, fabrics=tuple(fabrics))


@pytest.mark.parametrize(
    ("controlled", "bare", "says"),
    [
        (2.0, 1.01, "the control is the cause, not the technology"),
        (2.0, 1.7, "the control is a part of it"),
        (50.0, 51.0, "the control is not the cause"),
    ],
)
def test_the_verdict_tells_control_from_technology(found, controlled, bare, says):
    there = next(f for f in found.fabrics if f.name == "roce-400g")
    one = next(p for p in there.factors.played if p.phase == "exchange")
    slow = replace(one, packet_ps=round(one.flow_ps * controlled))
    without = replace(one, packet_ps=round(one.flow_ps * bare))
    played = tuple(slow if p is one else p for p in there.factors.played)
    changes = {"played": played, "control": "dcqcn (by-rate)", "uncontrolled": (without,)}
    said = verdict(_with_factors(found, "roce-400g", **changes))
    (line,) = [line for line in said.because if "dcqcn (by-rate)" in line]
    assert line.startswith("roce-400g, an exchange of the cut")
    assert line.endswith(says)
    # the job is dense: what its exchange would cost is not in its step, and that is said
    assert any(line.startswith("roce-400g: that an exchange takes longer there") for line in said.unknown)


@pytest.mark.second
def test_a_slow_phase_is_played_without_control_too(tmp_path, monkeypatch):
    """DCQCN made for 40 Gb/s slows a hot exchange at 400 Gb/s down; the network alone does not."""
    own = preset("roce-400g", {}).model_copy(update={"packet": {"control": "dcqcn", "dcqcn": "sigcomm15"}})
    there = with_fabric(spec(tmp_path), own)
    job = Sampler(there, lambda *_: None).job
    monkeypatch.setattr(packet_measurements.Load, "of", classmethod(lambda cls, *_: Load(512 << 10, 4.0, "")))
    factors = packet_measurements.measure(there, job, lambda *_: None, seeds=(1,))
    assert factors.control == "dcqcn (sigcomm15)"
    exchange = [pair for pair in factors.without_control() if pair[0].phase == "exchange"]
    ((with_it, without),) = exchange
    assert with_it.marks > 0 == without.marks
    assert with_it.factor > 1.2 * without.factor


def test_text_page_and_data_show_every_fabric(found):
    shown, drawn, plain = text(found), page(found), data(found)
    for f in found.fabrics:
        assert f.name in shown
        assert f.name in drawn
    assert [f["fabric"] for f in plain["fabrics"]] == [f.name for f in found.fabrics]
    json.dumps(plain, allow_nan=False)
    assert "http" not in drawn.replace("http-equiv", "")


def test_without_a_cut_control_reads_not_modelled(tmp_path):
    one = compare(spec(tmp_path), ["roce-400g"], book=price_book(), seeds=())
    assert "not modelled" in text(one)
    assert data(one)["fabrics"][0]["factors"] is None
    assert any("not modelled" in line for line in verdict(one).unknown)


def test_a_curve_over_a_key_of_the_spec(tmp_path):
    curve = vary(spec(tmp_path), "workload.training.micro_batches=2,4,8", ["infiniband-ndr"], {}, lambda *_: None)
    steps = [seconds for _, seconds in curve.series[0][1]]
    assert steps == sorted(steps)
    assert curve.values == (2.0, 4.0, 8.0)
    refused = vary(spec(tmp_path), "workload.training.parallel.tp=4,3", ["infiniband-ndr"], {}, lambda *_: None)
    assert [i for _, i in refused.refused] == [1]
    grown = with_value(spec(tmp_path), "cluster.hosts.count", "8")
    assert grown.to_dict()["cluster"]["hosts"][0]["count"] == 8
    both = with_value(spec(tmp_path), "cluster.hosts.type+cluster.hosts.count", "dgx-h200:2").to_dict()
    assert [both["cluster"]["hosts"][0][key] for key in ("type", "count")] == ["dgx-h200", 2]


@pytest.mark.parametrize(
    "given", ["x", "=1", "a.b=", "nowhere.at.all=1", "cluster.hosts.type+cluster.hosts.count=dgx-h200"]
)
def test_a_curve_that_cannot_be_is_one_clear_line(tmp_path, given):
    with pytest.raises(ConfigError):
        vary(spec(tmp_path), given, ["infiniband-ndr"], {}, lambda *_: None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fabrics", "infiniband-nrd"], "did you mean 'infiniband-ndr'"),
        (["--fabrics", ""], "expected at least one"),
        (["--fabrics", "roce-400g,roce-400g"], "expected each once"),
        (["--seeds", "x"], "whole numbers"),
        (["--vary", "x"], "expected a key of the spec and its values"),
    ],
)
def test_what_is_wrong_is_one_clear_line(tmp_path, capsys, arguments, said):
    path = tmp_path / "s.yaml"
    path.write_text(SPEC.format(more=""))
    assert main(["compare", str(path), *arguments]) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    assert said in line


def test_a_job_too_large_for_the_cluster_is_one_clear_line(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(SPEC.format(more="").replace("tp: 4, pp: 2", "tp: 8, pp: 4, dp: 4"))
    assert main(["compare", str(path), "--fabrics", "roce-400g", "--seeds", ""]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_presets_of_ones_own_change_the_catalogs(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("mine: {like: roce-400g, link_rate: 200 Gb/s, packet: {control: none}}\n")
    mine = own_presets(path)["mine"]
    assert mine.link_rate.value == 200 * 10**9
    assert mine.packet == {"balance": "routed", "lossless": True, "control": "none"}
    for wrong, said in (
        ("mine: {like: roce-40g}", "did you mean 'roce-400g'"),
        ("mine: 3", "expected a preset"),
        ("mine: {like: roce-400g, swich: x}", "unknown key"),
        ("mine: {like: roce-400g, packet: 3}", "expected keys of run.packet"),
    ):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=said):
            own_presets(path)
