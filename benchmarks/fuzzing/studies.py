"""Targets of `fuzz.py`: what sweeps, comparisons and campaigns read, and what they go on from."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from fuzzing.target import ROOT, Target, folder


def _axes() -> Target:
    """Axes as `sweep --vary` takes them, up to their points; one a line."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.runs.execute import spec_schema
    from fabrictwin.study.sweep.axes import leaves, parse_axis, schema_keys
    from fabrictwin.study.sweep.samples import grid, samples

    spec = load_spec(ROOT / "examples/laptop.yaml")
    keys = sorted(schema_keys(spec_schema()) | set(leaves(spec.to_dict())))

    def read(data: bytes) -> None:
        axes = [parse_axis(line, keys) for line in data.decode("utf-8", "replace").split("\n")[:6]]
        with suppress(ConfigError):
            grid(axes)
        samples(axes, 20, "latin", 1)

    written = [
        b"hosts=8,16,...,128\nrun.seed=1,2",
        b"hosts=log:1..64",
        b"link_rate=100 Gb/s..800 Gb/s\ntp+pp=1:4,2:2,4:1",
        b"workload.training.global_batch=1..4096",
    ]
    return Target(written, read)


def _journal() -> Target:
    """A sweep's journal as it was left."""
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.study.sweep.journal import journal
    from fabrictwin.study.sweep.sweep import plan

    asked = plan(load_spec(ROOT / "examples/laptop.yaml"), ["hosts=2,4"])
    path = folder() / f"{os.getpid()}-journal"
    with journal(path, asked.question, asked.points) as book:
        book.add(0, {"step_time_s": 1.5, "job": "x", "memory_fits": True, "busiest_link": None})
    sample = path.read_bytes()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with journal(path, asked.question, asked.points):
            pass

    return Target([sample], read)


def _run_folder() -> Target:
    """A file of a run folder that `diff` reads: its name on the first line, beside the others as a run wrote them."""
    from fabrictwin.base.progress import silent
    from fabrictwin.study.difference.compared_run import load_side

    place = folder() / f"{os.getpid()}-run"
    place.mkdir()
    whole = {
        "summary.json": b'{"name": "x", "memory": {"total_bytes": 5}, "step_time_s": 1.5, "mfu": 0.4,\n'
        b' "breakdown": [{"key": "compute", "name": "compute", "time_ps": 1500000000000}]}',
        "config.resolved.yaml": b"schema: 1\nname: x\ncluster: {hosts: [{type: dgx-h100, count: 2}]}\n",
        "links.csv": b"link,utilisation,tx_bytes\na > b,0.5,1000\nb > a,0.25,500\n",
    }

    def read(data: bytes) -> None:
        name, _, content = data.partition(b"\n")
        broken = name.decode("ascii", "replace")
        for file, text in whole.items():
            (place / file).write_bytes(content if file == broken else text)
        load_side(place, silent)

    return Target([name.encode() + b"\n" + text for name, text in whole.items()], read)


_CAMPAIGN = b"""campaign:
  days: 54
  failures: llama3-405b
  rates: {GPU memory: 148 / 884736 GPU-days, cables: {rate: 2 / cable-days, title: optics, shows: hang, replaces: true}}
  scale: 1.5
  detection: {error: 2 min, hang: 10 min, silent: 1 h}
  restart: {mean: 6 min, median: 3 min}
  manual: {chance: 0.01, time: 4 h}
  spares: 2
  repair: 24 h
  checkpoint: {kind: peer, every: 30 min, bytes_per_parameter: 14, storage: {write: 800 GB/s, read: 1 TB/s, hosts: [a]}}
  runs: 20
  seed: 3
"""


def _campaign() -> Target:
    """The section of a spec, up to the rates of its components and the first failures."""
    from itertools import islice

    from fabrictwin.base.yamlfile import read_yaml
    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.study.campaign.campaign_study import _steps, section_of
    from fabrictwin.study.campaign.failure_rates import FailureStream, components_of

    network = {"technology": "infiniband", "topology": {"kind": "fat-tree"}, "switch": "qm9700"}
    cluster = {"hosts": {"type": "dgx-h100", "count": 2}, "network": network}
    devices = {"GPU": 16.0, "host": 2.0, "adapter": 16.0, "cable": 32.0, "switch": 3.0, "job": 1.0}

    def read(data: bytes) -> None:
        found, _ = read_yaml(data.decode("utf-8", "replace"), "campaign")
        if not isinstance(found, dict):
            return
        spec = read_spec({"schema": 1, "cluster": cluster, **found})
        campaign = section_of(spec)
        _steps(spec, campaign, 1.5, 1 << 20)
        list(islice(FailureStream(components_of(spec, campaign, devices), 3, 0), 50))

    tokens = b"campaign: {tokens: 15.6T, checkpoint: {kind: blocking, every: best}, failures: rsc-1}\n"
    return Target([_CAMPAIGN, tokens, b"campaign: {steps: 1000, rates: {a: 1 / job-day}}\n"], read)


def _job_traces() -> Target:
    """Traces of what real programs computed and called, as `import-trace` takes them, of any format."""
    import json
    import sys

    sys.path.append(str(ROOT / "tests"))
    from support import traces

    from fabrictwin.interchange.read_traces import Given, read_traces

    path = folder() / f"{os.getpid()}-job.0.et"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_traces([path], given=Given(world=4, model_ranks=2))

    samples = [json.dumps(made).encode() for made in (traces.kineto(), traces.execution_trace())]
    samples += [traces.flight_recorder(0), traces.chakra_trace(0), traces.GOAL.encode(), traces.LAYERS.encode()]
    return Target(samples, read)


STUDIES: dict[str, Callable[[], Target]] = {
    "sweep-axes": _axes,
    "sweep-journal": _journal,
    "run-folder": _run_folder,
    "campaign": _campaign,
    "job-traces": _job_traces,
}
