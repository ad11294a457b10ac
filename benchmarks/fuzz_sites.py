"""Targets of `fuzz.py`: what people bring of their own site: logs and dumps to diagnose,
files of configuration, what a sweep or a comparison goes on from."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fuzz_target import ROOT, Target, folder

_NCCL = b"""host-0:4711:4711 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
host-0:4711:4720 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
host-0:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
host-0:4711:4725 [0] misc/socket.cc:481 NCCL WARN socketPollConnect: connect returned Connection refused
host-1:99:120 [1] transport/net_ib.cc:1862 NCCL WARN NET/IB: Got completion from peer 10.0.0.1<4791> with status=12
    33554432       8388608     float     sum      -1   412.30   81.38  152.59      0   410.10   81.82  153.41      0
"""


def _evidence() -> Target:
    """Files of a sick cluster: text, JSON, a flight recorder's dump, packed or not."""
    from fabrictwin.diagnosis.readers.reading import read_paths

    entry = {
        "collective_seq_id": 3, "p2p_seq_id": 0, "op_id": 3, "profiling_name": "nccl:all_reduce", "state": "started",
        "input_sizes": [[1024]], "output_sizes": [[1024]], "input_dtypes": ["Float"], "process_group": ("0", "default"),
    }  # fmt: skip
    dump = {
        "version": "2.9",
        "entries": [entry],
        "pg_config": {"0": {"name": "0", "desc": "default", "ranks": "[0, 1]"}},
    }
    config = {"DEVICE_METADATA": {"localhost": {"hostname": "leaf-0"}}, "PORT": {"Ethernet0": {"speed": "400000"}}}

    def read(data: bytes) -> None:
        path = folder() / f"{os.getpid()}-evidence"
        path.write_bytes(data)
        read_paths([path])

    samples = [_NCCL, pickle.dumps(dump, 2), pickle.dumps(dump, 4), json.dumps(config).encode()]
    samples += [json.dumps(dump).encode(), gzip.compress(_NCCL, mtime=0)]
    return Target(samples, read)


def _configuration() -> Target:
    """Files of switches, hosts and jobs as the twin writes them: the name on the first line, then the file."""
    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.configuration.policy.cluster_policy import configuration, plan
    from fabrictwin.configuration.readers.recognise import read_files
    from fabrictwin.configuration.writers.files import write_files
    from fabrictwin.configuration.writers.targets import files_of

    samples = []
    for switch, technology, targets in (
        ("spectrum-4", "ethernet", ("sonic", "host", "slurm", "k8s")),
        ("qm9700", "infiniband", ("opensm",)),
    ):
        network = {"technology": technology, "switch": switch, "topology": {"kind": "rail-optimised"}}
        made = plan(
            read_spec({"schema": 1, "cluster": {"hosts": {"type": "dgx-h100", "count": 2}, "network": network}})
        )
        place = folder() / technology
        for target in targets:
            files = files_of(configuration(made, target, os="sonic"), target, opensm_folder=str(place / "opensm"))
            for path in write_files(files, place)[:12]:
                samples.append(str(path.relative_to(place)).encode() + b"\n" + path.read_bytes()[: 1 << 13])

    def read(data: bytes) -> None:
        name, _, rest = data.partition(b"\n")
        own = folder() / f"{os.getpid()}-site" / Path(name.decode("ascii", "replace")).name.replace("\0", "")[:80]
        own.parent.mkdir(exist_ok=True)
        if own.is_dir():
            own = own / "file"
        own.write_bytes(rest)
        read_files([own])
        own.unlink()

    return Target(samples, read)


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
    from fabrictwin.study.difference.side import load_side

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


SITES: dict[str, Callable[[], Target]] = {
    "evidence": _evidence,
    "configuration": _configuration,
    "sweep-axes": _axes,
    "sweep-journal": _journal,
    "run-folder": _run_folder,
}
