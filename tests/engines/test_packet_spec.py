"""`run.packet` of a spec: read, checked, and felt by the engine."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from support.clusters import blueprint
from support.specs import SMALL, write_spec

from fabrictwin.base.congestion_controls import CONTROLS, DCQCN, Control, DcqcnSet
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.grouped import flat
from fabrictwin.capture.flow_summary import summarise
from fabrictwin.capture.reader import CaptureFile
from fabrictwin.capture.recorder import CaptureRequest
from fabrictwin.cluster.spec.packet_section import Balance, Packet
from fabrictwin.cluster.spec.spec import load_spec, read_spec
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.packet_options import BALANCES, PacketOptions, options_of
from fabrictwin.kernel.packet.state.state import nbytes
from fabrictwin.runs.execute import predict, prepare
from fabrictwin.twin import Twin

SPEC = """\
schema: 1
name: small
cluster:
  hosts: {{type: pcie-box, count: 2}}
  network:
    technology: {technology}
    switch: {switch}
    topology: {{kind: single-switch}}
workload:
  training:
    model: tiny.json
    parallel: {{tp: 1, pp: {pp}}}
    micro_batches: 2
    sequence: 512
run:
  fidelity: {fidelity}
"""


TINY = {**SMALL, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}


@pytest.fixture
def run(tmp_path):
    """Writes a spec with lines added to its run section, and reads it."""

    def write(*lines: str, technology="infiniband", fidelity="packet", pp=2, before: str = "") -> Path:
        switch = "qm8700" if technology == "infiniband" else "spectrum-4"
        text = SPEC.format(technology=technology, switch=switch, fidelity=fidelity, pp=pp)
        return write_spec(tmp_path, before + text + "".join(f"  {line}\n" for line in lines), TINY)

    return write


def end(path: Path) -> int:
    return predict(load_spec(path)).trace.end_ps


def test_the_section_names_what_the_engine_knows():
    assert set(get_args(Balance)) == set(BALANCES)
    assert set(get_args(Control)) == set(CONTROLS)
    assert set(get_args(DcqcnSet)) == set(DCQCN)


def test_nothing_given_is_the_engines_defaults():
    assert options_of(None, "infiniband", 1) == options_of(Packet(), "ethernet", 1) == PacketOptions()


def test_every_key_reaches_the_engine():
    given = {
        "balance": "routed",
        "retransmission": "selective",
        "timeout": 18,
        "retry_count": 3,
        "rnr_retry": 2,
        "rnr_timer": "1 ms",
        "ack_every": 8,
        "window": "1 MiB",
        "window_packets": 256,
        "virtual_lanes": 2,
        "service_level": 1,
        "service_levels": {"all-reduce": 1},
        "store_and_forward": True,
        "credit_batch": "8 KiB",
        "gpudirect": False,
        "staging_chunk": "256 KiB",
        "staging_time": "3 us",
        "memory_limit": "1 GiB",
        "packet_limit": 1000,
        "message_limit": 100,
        "parts": 4,
        "fast_forward": "0.5%",
    }
    infiniband = {
        "credit_buffer": "64 KiB",
        "head_of_queue_lifetime": "1 s",
        "sl_to_vl": [0, 1] * 8,
        "vl_high": "1:64",
        "vl_low": "0:64,1:128",
        "vl_high_limit": 4,
    }
    ethernet = {
        "control": "dcqcn",
        "dcqcn": "hpcc",
        "lossless": False,
        "buffer": "32 MiB",
        "buffer_alpha": 0.5,
        "controls": {1: "cubic"},
        "strict_priorities": [1],
        "ets_weights": [3, 1],
    }
    default = flat(PacketOptions())
    reached = set()
    lossy = {"lossy_priorities": [1], "fast_forward": "off"}  # of a lossless network
    for technology, more in (("infiniband", infiniband), ("ethernet", ethernet), ("ethernet", lossy)):
        found = options_of(Packet.model_validate(given | more | {"balance": "adaptive"}), technology, 7)
        reached |= {name for name, value in flat(found).items() if value != default[name]}
    # follows from the program; stands under the network; a command's, for it changes no result
    derived = {"host_work", "qos", "threads"}
    assert reached == set(default) - derived, "a key of the section for every option of the engine"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "{balance: adaptiv}",
            r"spec.yaml:17 run.packet.balance: got 'adaptiv', expected .*did you mean 'adaptive'",
        ),
        ("{balanse: spray}", "did you mean 'balance'"),
        ("{dcqcn: hpcc}", "got dcqcn, which means nothing without control: dcqcn"),
        (
            "{preset: pfc-only, control: dcqcn}",
            "got control: dcqcn beside preset: pfc-only, which is control: none",
        ),
        ("{preset: pfc-swift, lossless: false}", "which is lossless: true"),
        ("{balance: spray, retransmission: go-back-n}", "reorders and needs selective"),
        ("{control: nscc, lossless: true}", "trims packets instead of pausing"),
        ("{staging_time: 1 us}", "nothing without gpudirect: false"),
        ("{window: 65536}", "without a unit"),
        ("{window_packets: 1000}", "expected a power of two"),
        ("{timeout: 32}", "at most 31"),
        ("{virtual_lanes: 3}", "got 3, expected 1, 2, 4 or 8"),
    ],
)
def test_what_makes_no_sense_is_one_line(run, lines, message):
    with pytest.raises(ConfigError) as caught:
        load_spec(run(f"packet: {lines}"))
    assert re.search(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("technology", "key"), [("infiniband", "lossless: false"), ("ethernet", "credit_buffer: 64 KiB")]
)
def test_a_key_of_the_other_technology_is_refused_with_its_line(run, technology, key):
    name = key.partition(":")[0]
    with pytest.raises(ConfigError, match=rf"spec.yaml:17 run.packet.{name}: got {name} on"):
        predict(load_spec(run(f"packet: {{{key}}}", technology=technology)))


def test_the_run_feels_its_options(run):
    plain = end(run())
    assert end(run("packet: {store_and_forward: true}")) > plain
    assert end(run("packet: {}")) == plain
    simple = end(run("collectives: simple"))
    assert end(run("collectives: simple", "packet: {gpudirect: false}")) > simple
    with pytest.raises(ConfigError, match=r"spec.yaml:17 run.packet.gpudirect: got false beside NCCL's choices"):
        predict(load_spec(run("packet: {gpudirect: false}")))


def test_another_fidelity_notes_what_it_did_not_use(run):
    used = predict(load_spec(run("packet: {gpudirect: false}", fidelity="flow")))
    assert used.job.notes[-1] == "run.packet was not used: the fidelity is flow"
    assert used.trace.end_ps == end(run(fidelity="flow"))


def test_a_spec_with_the_section_prints_and_reads_back():
    data = {
        "schema": 1,
        "cluster": {
            "hosts": {"type": "pcie-box", "count": 2},
            "network": {"technology": "infiniband", "switch": "qm8700", "topology": {"kind": "single-switch"}},
        },
        "run": {"packet": {"window": "1 MiB", "rnr_timer": "1 ms", "buffer_alpha": 0.5, "lossless": False}},
    }
    spec = read_spec(data)
    assert read_spec(spec.to_dict()) == spec
    assert spec.to_dict()["run"]["packet"] == data["run"]["packet"]


def test_service_levels_of_the_routes_choose_the_lanes():
    shape = {"kind": "fat-tree", "tiers": 2, "leaf_down": 4}
    twin = Twin(blueprint(8, "pcie-box", topology=shape))
    routes = twin.routes
    lane = np.full((int(routes.lid.max()) + 1, len(routes.groups.distance)), 1, np.uint8)
    network = PacketNetwork(twin.fabric, dataclasses.replace(routes, lane=lane, lanes=2))
    assert network.connections.remote(0, 5).framing.sl == 1
    assert network.machine.config.lanes == 2
    assert PacketNetwork(twin.fabric, routes).connections.remote(0, 5).framing.sl == 0


def test_a_run_that_is_too_large_is_refused_with_the_cut_that_fits(run):
    """The run has 8 micro-batches on 4 replicas; the limit is what 3 take."""
    path = run(pp=2)
    text = path.read_text().replace("count: 2", "count: 4").replace("micro_batches: 2", "micro_batches: MANY")

    def hops(many: int, dp: int) -> int:
        here = text.replace("MANY", str(many)).replace("pp: 2", f"pp: 2, dp: {dp}")
        path.write_text(here)
        prepared = prepare(load_spec(path))
        engine = prepared.twin.start_engine("packet")
        program = prepared.job.program
        return engine.operations.size_of(program.operations, program.communications, prepared.job.rank_node).hops

    limit = hops(3, 4)
    assert hops(4, 4) > limit
    most = max(dp for dp in range(1, 4) if hops(8, dp) <= limit)
    path.write_text(text.replace("MANY", "8") + f"  packet: {{packet_limit: {limit}}}\n")
    fits = rf"micro_batches: 3 \(of 8\) or parallel\.dp: {most} \(of 4\) fits"
    with pytest.raises(ConfigError, match=fits) as caught:
        predict(load_spec(path))
    assert caught.value.line == 15
    assert "packet-hops, the limit is" in str(caught.value)
    path.write_text(text.replace("MANY", "3") + f"  packet: {{packet_limit: {limit}}}\n")
    assert end(path) > 0


def test_memory_is_estimated_before_the_run_and_is_about_what_it_takes(run):
    prepared = prepare(load_spec(run()))
    engine = prepared.twin.start_engine("packet")
    program = prepared.job.program
    size = engine.operations.size_of(program.operations, program.communications, prepared.job.rank_node)
    play(program, prepared.job.rank_node, engine)
    taken = nbytes(engine.network.machine.state)
    assert 0.5 * taken < size.memory_bytes < 2 * taken
    with pytest.raises(ConfigError, match=r"of memory, the limit is .*: .*use fidelity flow"):
        predict(load_spec(run(f"packet: {{memory_limit: {size.memory_bytes - 1} B}}")))


def test_a_job_is_captured_and_other_fidelities_have_no_packets(run, tmp_path):
    path = tmp_path / "job.pcapng"
    plain = predict(load_spec(run("packet: {}")))
    captured = predict(load_spec(run("packet: {}")), capture=CaptureRequest(path, snaplen=100))
    assert captured.trace.end_ps == plain.trace.end_ps
    found = summarise(CaptureFile(path))
    fabric = captured.fabric
    sent = captured.trace.counters.tx_bytes[fabric.nic_port[fabric.nic_port >= 0]].sum()
    out = [f for f in found.flows if f.ends.outbound]
    assert sum(f.counts["payload_bytes"] for f in out) == int(sent) > 0
    assert found.total("gaps") == found.total("retransmissions") == found.total("icrc_errors") == 0
    with pytest.raises(ConfigError, match="nothing else has packets"):
        predict(load_spec(run("packet: {}", fidelity="flow")), capture=CaptureRequest(path))


@pytest.mark.parametrize(
    ("preset", "control", "parameters"),
    [
        ("pfc-only", "none", "by-rate"),
        ("pfc-dcqcn", "dcqcn", "by-rate"),
        ("pfc-swift", "swift", "by-rate"),
        ("tcp-cubic", "cubic", "by-rate"),
        ("tcp-dctcp", "dctcp", "by-rate"),
    ],
)
def test_a_preset_stands_for_flow_control_and_its_congestion_control(preset, control, parameters):
    section = Packet.model_validate({"preset": preset})
    options = options_of(section, "ethernet", 1)
    assert (options.congestion.control, options.congestion.dcqcn) == (control, parameters)
    assert options.switching.lossless == preset.startswith("pfc")
    again = Packet.model_validate(section.model_dump(exclude_none=True))
    assert again == section
    with pytest.raises(ConfigError, match=r"run.packet.preset"):
        options_of(section, "infiniband", 1)
