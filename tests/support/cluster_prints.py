"""Logs of NCCL on hosts with and without faults, made by the twin, and ways to disturb them."""

from __future__ import annotations

import io
import random
import re
from contextlib import suppress
from functools import cache
from typing import Any

import fabrictwin as ft
from fabrictwin.base.errors import SimulatedError

SUBSYSTEMS = "INIT,ENV,NET,GRAPH,BOOTSTRAP,TUNING,P2P,SHM"


def printed(spec: dict[str, Any], release: str, environment: dict[str, str], smallest: str = "64M") -> str:
    """Output of nccl-tests with NCCL's log, to the end or to the error that ends them."""
    out = io.StringIO()
    asked = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, **environment}
    # NCCL's warning stands in the output where it does not come up
    with suppress(SimulatedError):
        ft.nccl_tests(
            "all_reduce_perf", spec, minbytes=smallest, maxbytes="1G", stepfactor=4, check=0,
            nccl_version=release, environment=asked, out=out,
        )  # fmt: skip
    return out.getvalue()


@cache
def nccl_log(
    host: str = "dgx-h100",
    hosts: int = 2,
    *,
    fault: str = "",
    at: str = "host-1",
    setting: str = "",
    release: str = "2.23.4",
    technology: str = "infiniband",
) -> str:
    """Output of nccl-tests with NCCL's log; `setting` is `NAME=value`."""
    switch = {"infiniband": "qm8700" if "a100" in host else "qm9700", "ethernet": "spectrum-4"}[technology]
    kind = "rail-optimised" if hosts > 1 else "single-switch"
    spec: dict[str, Any] = {
        "schema": 1,
        "cluster": {
            "hosts": {"type": host, "count": hosts},
            "network": {"technology": technology, "topology": {"kind": kind}, "switch": switch},
        },
        "faults": [{"host": at, "cause": fault}] if fault else [],
    }
    name, _, value = setting.partition("=")
    return printed(spec, release, {name: value} if name else {}, smallest="256M")


_WHO = re.compile(r"^(\S+:\d+:\d+) \[\d+\]")


def interleaved(text: str, seed: int) -> str:
    """The log with the lines of its threads mixed anew, each thread's in their order; other lines stay."""
    rng, lines = random.Random(seed), text.split("\n")
    places = [i for i, line in enumerate(lines) if _WHO.match(line)]
    queues: dict[str, list[str]] = {}
    for i in places:
        found = _WHO.match(lines[i])
        assert found is not None
        queues.setdefault(found[1], []).append(lines[i])
    order = [who for who, mine in queues.items() for _ in mine]
    rng.shuffle(order)
    for i, who in zip(places, order, strict=True):
        lines[i] = queues[who].pop(0)
    return "\n".join(lines)


PREFIXES = ("mpirun", "slurm", "ray", "kubernetes", "torchrun", "compose", "mpich", "pdsh", "cloudwatch", "dated")


def prefixed(text: str, launcher: str) -> str:
    """The log as a launcher would pass it on."""
    made = {
        "mpirun": lambda i: f"[1,{i % 16}]<stdout>:",
        "slurm": lambda i: f"{i % 2}: ",
        "ray": lambda i: f"(RayWorkerWrapper pid={4000 + i % 8}, ip=10.0.0.{1 + i % 2}) ",
        "kubernetes": lambda i: f"2026-01-02T03:04:{i % 60:02d}.123456789Z stdout F ",
        "torchrun": lambda i: f"[rank{i % 16}]:",
        "compose": lambda i: f"worker-{i % 2}  | ",
        "mpich": lambda i: f"[{i % 16}] ",
        "pdsh": lambda i: f"node-{i % 2}.example.org: ",
        "cloudwatch": lambda i: f"| 2026-01-02T03:04:{i % 60:02d}.123-07:00 | ",
        "dated": lambda i: f"2026-01-02 03:04:{i % 60:02d}.123 +08:00 ",
    }[launcher]
    return "\n".join(made(i) + line for i, line in enumerate(text.split("\n")))


def coloured(text: str) -> str:
    """The log with terminal escapes at the words that programs like to colour."""
    return re.sub(r"NCCL (INFO|WARN)", "NCCL \\1\x1b[0m", text.replace("host-", "\x1b[36mhost-"))


def renamed(text: str) -> str:
    """The log of hosts with other names."""
    return re.sub(r"\bhost-(\d+)\b", lambda found: f"gpu{found[1]}.rack-b.example.org", text)


def cut(text: str) -> str:
    """The log without its last tenth."""
    return text[: len(text) * 9 // 10]
