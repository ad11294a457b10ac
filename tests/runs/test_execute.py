"""From a spec to a folder."""

from __future__ import annotations

import dataclasses
import gc
import io
import json
from pathlib import Path

import numpy as np
import pytest
from support.specs import TINY, tiny_job

from fabrictwin.base.errors import ConfigError, InvariantError, SimulatedError
from fabrictwin.base.yamlfile import read_yaml_file
from fabrictwin.cli import main
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.report.summary import summary
from fabrictwin.runs import execute
from fabrictwin.runs.dry_run import BASE_BYTES, DryRun, memory_bytes
from fabrictwin.runs.execute import cluster_line, predict, prepare, with_overrides
from fabrictwin.runs.folder import FILES
from fabrictwin.twin.routed_twin import make_twin

SPEC = """\
schema: 1
name: two boxes
cluster:
  hosts: {type: dgx-a100, count: 2}
  network:
    technology: infiniband
    switch: qm8700
    topology: {kind: fat-tree, tiers: 2}
workload:
  training:
    model: tiny.json
    parallel: {tp: 4, pp: 2}
    micro_batches: 4
    sequence: 2048
faults:
  - {link: host-0/mlx5_1, rate: 100 Gb/s}
run:
  fidelity: analytic
  compare: {source: "somebody, table 1", hardware_tflops_per_gpu: 100, step_time: 10 ms}
"""


@pytest.fixture
def spec_file(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    return path


def test_a_run_prints_the_answer_and_writes_its_folder(spec_file, capsys):
    assert main(["run", str(spec_file)]) == 0
    out = capsys.readouterr().out
    assert "2 × NVIDIA DGX A100 (16 GPUs), InfiniBand at 200 Gb/s, 2 switches" in out
    assert "published   somebody, table 1" in out
    assert str(Path("runs/two-boxes/report.html")) in out
    data = json.loads(Path("runs/two-boxes/summary.json").read_text())
    assert sum(share["time_ps"] for share in data["breakdown"]) == data["step_time_ps"]
    # the second run goes beside the first and is the same but for its times of day
    assert main(["run", str(spec_file)]) == 0
    for name in FILES:
        assert Path("runs/two-boxes", name).read_bytes() == Path("runs/two-boxes-2", name).read_bytes(), name


def test_json_is_summary_json_and_nothing_else(spec_file, capsys):
    assert main(["run", str(spec_file), "--json", "--out", "there"]) == 0
    captured = capsys.readouterr()
    assert captured.out == Path("there/summary.json").read_text()
    assert captured.err == ""


def test_the_resolved_configuration_runs_to_the_same_result(spec_file):
    assert main(["run", str(spec_file), "--seed", "5", "--out", "a"]) == 0
    assert main(["run", "a/config.resolved.yaml", "--out", "b"]) == 0
    for name in FILES:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name
    resolved, _ = read_yaml_file("a/config.resolved.yaml")
    assert resolved["run"]["seed"] == 5
    assert resolved["cluster"]["network"]["mtu"] == "4 KiB", "defaults are spelled out"
    training = resolved["workload"]["training"]
    assert training["parallel"].items() >= {"tp": 4, "pp": 2, "dp": 2}.items(), "dp is spelled out"
    assert training["model"] == {**TINY, "_name": "tiny"}, "the model needs its file no more"


def test_a_dry_run_simulates_and_writes_nothing(spec_file, capsys, monkeypatch):
    monkeypatch.setattr(execute, "play", lambda *_: pytest.fail("a dry run simulated"))
    assert main(["run", str(spec_file), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "16 of 16 GPUs, on 2 hosts, simulated as 2 actors" in out
    assert "nothing was simulated" in out
    assert "of this machine's memory" in out
    assert "  GPU memory  " in out
    assert main(["run", str(spec_file), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["operations"] == plan["compute_operations"] + plan["communication_operations"] > 100
    assert sorted(p.name for p in Path().iterdir()) == ["spec.yaml", "tiny.json"]


def test_a_dry_run_refuses_what_a_run_would(spec_file, capsys):
    text = spec_file.read_text().partition("\nrun:")[0]
    spec_file.write_text(f"{text}\nrun: {{fidelity: packet, packet: {{packet_limit: 1000}}}}\n")
    for command in (["--dry-run"], []):
        assert main(["run", str(spec_file), *command]) == 2
        assert "packet-hops, the limit is 1e+03" in capsys.readouterr().err
    assert main(["run", str(spec_file), "--dry-run", "--out", "."]) == 2
    assert "is not a run" in capsys.readouterr().err
    assert main(["run", str(spec_file), "--dry-run", "--fidelity", "flow", "--pcap", "x"]) == 2
    assert "nothing else has packets" in capsys.readouterr().err


def test_a_dry_run_of_packets_says_how_many_and_how_long(spec_file, capsys):
    found = {}
    for fidelity in ("packet", "flow"):
        assert main(["run", str(spec_file), "--dry-run", "--json", "--fidelity", fidelity]) == 0
        found[fidelity] = json.loads(capsys.readouterr().out)
    assert found["flow"]["estimated_packet_hops"] is None
    assert found["packet"]["estimated_packet_hops"] > 0
    assert found["packet"]["estimated_wall_s"] > found["flow"]["estimated_wall_s"] > 0
    assert found["packet"]["estimated_memory_bytes"] > found["flow"]["estimated_memory_bytes"]


def test_the_folder_is_checked_before_anything_is_simulated(spec_file, capsys, monkeypatch):
    monkeypatch.setattr(execute, "play", lambda *_: pytest.fail("simulated for nothing"))
    assert main(["run", str(spec_file), "--out", "."]) == 2
    assert "is not a run" in capsys.readouterr().err


def test_a_failed_run_writes_nothing(spec_file, capsys, monkeypatch):
    def fails(*_):
        raise InvariantError("a byte was lost")

    monkeypatch.setattr(execute, "play", fails)
    assert main(["run", str(spec_file)]) == 1
    assert capsys.readouterr().err == "error: internal: a byte was lost\n"
    assert sorted(p.name for p in Path().iterdir()) == ["spec.yaml", "tiny.json"]


def test_an_operation_that_never_ends_is_an_invariant(spec_file, monkeypatch):
    play = execute.play

    def loses_one(*arguments):
        trace = play(*arguments)
        start = trace.start_ps.copy()
        start[7] = -1
        return dataclasses.replace(trace, start_ps=start)

    monkeypatch.setattr(execute, "play", loses_one)
    with pytest.raises(InvariantError, match=r"operation 7 \(.*\) never ended"):
        predict(load_spec(spec_file))


def test_stdin_is_a_spec(spec_file, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(SPEC))
    assert main(["run", "-", "--json", "--out", "piped"]) == 0
    assert main(["run", str(spec_file), "--json", "--out", "filed"]) == 0
    assert Path("piped/summary.json").read_bytes() == Path("filed/summary.json").read_bytes()


def test_the_command_line_goes_over_the_spec(spec_file):
    spec = with_overrides(load_spec(spec_file), fidelity="flow", seed=9)
    assert (spec.run.fidelity, spec.run.seed) == ("flow", 9)
    assert spec.run.compare is not None
    assert spec.path == spec_file
    assert with_overrides(spec) is spec


def test_dead_and_slow_links_reach_the_twin(spec_file):
    spec_file.write_text(SPEC.replace("faults:\n", "faults:\n  - {link: host-0/mlx5_0, rate: 0 Gb/s}\n"))
    spec = load_spec(spec_file)
    blueprint = build(spec.cluster, spec=spec)
    twin = make_twin(spec, blueprint)
    assert len(twin.blueprint.cables) == len(blueprint.cables) - 1
    slow = {twin.fabric.link_name(port) for port, rate in twin.link_rate_bps.items() if rate == 100 * 10**9}
    assert len(slow) == 2
    assert all("host-0/mlx5_1/" in name for name in slow)
    dead = twin.fabric.find_node("host-0/mlx5_0")
    first = int(twin.fabric.node_port_start[dead])
    kinds = twin.fabric.port_peer[first : int(twin.fabric.node_port_start[dead + 1])]
    assert (kinds == -1).sum() == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("switch: qm8700", "switch: qm8700\n    routing: {engine: dmodc}"),
            r"spec.yaml:8 .*engine: got 'dmodc'.*mean 'dmodk'",
        ),
        (("hardware_tflops_per_gpu: 100", "hardware_tflops_per_gpu: -1"), "spec.yaml:19 run.compare"),
        ((", hardware_tflops_per_gpu: 100, step_time: 10 ms", ""), "spec.yaml:19 run.compare: got no figure"),
        (("link: host-0/mlx5_1", "link: host-9/mlx5_1"), "spec.yaml:16 .*host-9"),
    ],
)
def test_what_is_wrong_in_the_spec_names_file_and_line(spec_file, change, said):
    before = spec_file.read_text()
    assert change[0] in before
    spec_file.write_text(before.replace(*change))
    with pytest.raises(ConfigError, match=said):
        predict(with_overrides(load_spec(spec_file), fidelity="flow"))


def test_an_error_about_no_key_of_the_spec_has_no_line(spec_file, monkeypatch, capsys):
    def refuses(*_):
        raise ConfigError("too large", key="packet")

    monkeypatch.setattr(execute, "play", refuses)
    assert main(["run", str(spec_file)]) == 2
    assert capsys.readouterr().err == "error: packet: too large\n"


def test_flow_and_analytic_see_the_same_bytes(spec_file):
    """A job sends the same, however closely it is simulated."""
    results = [predict(with_overrides(load_spec(spec_file), fidelity=f)) for f in ("flow", "analytic")]
    for result in results:
        assert (result.breakdown.actor_ps.sum(axis=1) == result.trace.end_ps).all()
    flow, analytic = ({k["kind"]: k["tx_bytes"] for k in summary(r)["traffic_by_link_kind"]} for r in results)
    assert flow["NVLink"] == analytic["NVLink"] > 0


def test_the_estimate_of_memory_covers_the_arrays(spec_file):
    prepared = prepare(load_spec(spec_file))
    program = prepared.job.program
    connections = (c.transport.connections for c in program.communications)
    least = sum(
        value.nbytes
        for thing in (prepared.twin.fabric, program.operations, *connections)
        for value in vars(thing).values()
        if isinstance(value, np.ndarray)
    )
    assert least < memory_bytes(DryRun(prepared, None)) - BASE_BYTES < 20 * least


def test_the_cluster_in_one_line(spec_file):
    text = SPEC.replace(
        "{type: dgx-a100, count: 2}", "[{type: dgx-a100, count: 1}, {type: pcie-box, count: 1, prefix: box}]"
    )
    spec_file.write_text(text.replace("host-0/mlx5_1", "host-0/mlx5_2"))
    spec = load_spec(spec_file)
    blueprint = build(spec.cluster, spec=spec)
    line = cluster_line(blueprint, make_twin(spec, blueprint).fabric)
    assert line.startswith("1 × ")
    assert ", 1 × " in line


def test_a_slow_link_is_reported_at_the_rate_it_runs_at():
    """A degraded link must stand out in the result: at its own rate, and named as a fault."""
    of = tiny_job(2, parallel={"tp": 8, "pp": 1}, faults=[{"link": "leaf-0/1", "rate": "10 Gb/s"}])
    result = predict(of)
    port = result.fabric.find_node("leaf-0")
    port = int(result.fabric.node_port_start[port])
    assert result.fabric.port_rate_bps[port] == 10_000_000_000
    assert any("fault: link leaf-0/1" in note for note in result.job.notes)


@pytest.mark.parametrize("fidelity", ["analytic", "flow"])
def test_a_fault_that_no_engine_would_show_is_refused(fidelity):
    """Only NCCL notices: the step is longer than the healthy one, or ends in its error."""
    fault = {"host": "host-*", "cause": "no-rdma-devices"}
    with pytest.raises(ConfigError, match=r"faults\[0\].cause: got no-rdma-devices with run.collectives: simple"):
        predict(tiny_job(faults=[fault], sections={"run": {"fidelity": fidelity, "collectives": "simple"}}))
    healthy = predict(tiny_job(fidelity=fidelity))
    sick = predict(tiny_job(faults=[fault], fidelity=fidelity))
    assert sick.trace.end_ps > healthy.trace.end_ps
    filtered = {"host": "host-*", "cause": "interface-filter", "interfaces": "ib9"}
    with pytest.raises(SimulatedError, match="no socket interface found"):
        predict(tiny_job(faults=[filtered], fidelity=fidelity))


def test_access_control_is_shown_without_nccl():
    fault = {"host": "host-*", "cause": "acs"}
    assert predict(tiny_job(faults=[fault])).trace.end_ps >= predict(tiny_job()).trace.end_ps


def test_nothing_is_done_before_anything_was_posted():
    class Idle:
        """An engine before, in and after its work."""

        idle, progress = True, 1.0

    engine = Idle()
    share = execute.share_done(engine)
    assert share() == 0
    engine.idle, engine.progress = False, 0.25
    assert share() == 0.25
    engine.idle, engine.progress = True, 1.0
    assert share() == 1


@pytest.mark.parametrize("fidelity", ["analytic", "flow", pytest.param("packet", marks=pytest.mark.second)])
def test_a_run_leaves_no_cyclic_garbage_of_the_twin(spec_file, fidelity):
    """Few objects hold large arrays, and the collector counts objects: thousands of runs would fill the memory."""
    spec = with_overrides(load_spec(spec_file), fidelity=fidelity)
    summary(predict(spec))  # what is imported, compiled and remembered
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        summary(predict(spec))
        gc.collect()
        left = {type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("fabrictwin.")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not left
