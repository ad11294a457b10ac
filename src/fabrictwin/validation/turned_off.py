"""The cost of turning things off: bus bandwidths with a thing on and off, on the twin and as published.

`turned_off.yaml` says which: NCCL's variables for either, and what is broken besides. Both run NCCL's own choice
of that release under them, each on a cluster of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import Size, format_size
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.tasks import COLLECTIVE, Kind, Task
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.settings.version import DEFAULT
from fabrictwin.nccl.tuning.tuner import Call, tuner
from fabrictwin.report.csv_tables import bus_factor
from fabrictwin.runs.workers import in_order
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.validation.published_data import Section, read_texts

FILE = "turned_off.yaml"
Positive = Annotated[float, Field(gt=0)]


class Figures(Section):
    """Bus bandwidths in GB/s."""

    on: Positive
    off: Positive

    @property
    def factor(self) -> float:
        """Factor by which it is faster with the thing on."""
        return self.on / self.off


class Test(Section):
    what: str
    machine: str
    host: str
    hosts: Annotated[int, Field(ge=1, le=64)]
    gpus: Annotated[int, Field(ge=2)] | None = None  # all, unless it is said
    technology: Literal["infiniband", "ethernet"] = "infiniband"
    switch: str = "qm9700"
    oversubscription: Annotated[int, Field(ge=1)] = 1
    nccl: str = DEFAULT
    kind: Kind = "all_reduce"
    size: Size
    on: dict[str, str | int] = Field(default={})
    off: dict[str, str | int] = Field(
        default={}
    )  # beside those of `on`, where something is turned off by a variable
    faults: tuple[dict[str, str], ...] = ()
    published: Figures | None = None
    source: str = ""

    @property
    def changes(self) -> str:
        """Settings that turn it off, for people."""
        gone = [name for name in self.on if not self.off and not self.faults]
        words = [f"{name}={value}" for name, value in self.off.items()] + [f"no {name}" for name in gone]
        return ", ".join([*words, *(f"{fault['link']} at {fault['rate']}" for fault in self.faults)])


class Texts(Section):
    tests: tuple[Test, ...]


@record
class Answer:
    """Bus bandwidths of the twin, GB/s."""

    test: Test
    on: float
    off: float

    @property
    def factor(self) -> float:
        return self.on / self.off


def read_tests(folder: Path) -> tuple[Test, ...]:
    """Raises ConfigError with file and line."""
    return read_texts(folder / FILE, Texts).tests


def answers(
    tests: Iterable[Test],
    *,
    fidelity: Fidelity = "flow",
    stage: Stage = silent,
    workers: int | str | None = 1,
) -> list[Answer]:
    """Each test run both ways. Raises ConfigError."""
    asked = list(tests)
    names = [f"{test.what}, {test.machine}" for test in asked]
    return in_order(partial(_answered, fidelity), asked, workers, stage, names)


def _answered(fidelity: Fidelity, test: Test) -> Answer:
    # what is on by a variable alone is off without it
    off = {**test.on, **test.off} if test.off or test.faults else {}
    return Answer(test, _bus(test, test.on, (), fidelity), _bus(test, off, test.faults, fidelity))


def _bus(
    test: Test, variables: dict[str, str | int], faults: tuple[dict[str, str], ...], fidelity: Fidelity
) -> float:
    rails = {"kind": "rail-optimised", "oversubscription": test.oversubscription}
    network = {"technology": test.technology, "switch": test.switch, "topology": rails}
    spec = read_spec(
        {
            "schema": 1,
            "name": "turned-off",
            "cluster": {"hosts": {"type": test.host, "count": max(test.hosts, 2)}, "network": network},
            "faults": [dict(fault) for fault in faults],
        }
    )
    twin = make_twin(spec, build(spec.cluster, spec=spec))
    settings = read_settings({name: str(value) for name, value in variables.items()}, release=test.nccl)
    gpus = twin.fabric.gpu_node[twin.fabric.node_host[twin.fabric.gpu_node] < test.hosts]
    communicator = initialise(twin, gpus[: test.gpus], settings=settings, version=test.nccl)
    choice = None
    if test.kind in COLLECTIVE:
        choice = tuner(communicator).choose(Call(COLLECTIVE[test.kind], test.size))
    unit = 4 * communicator.ranks
    size = test.size // unit * unit
    (time_ps,) = measure(communicator, [(Task(test.kind, size), choice)], fidelity=fidelity).tolist()
    return float(size * 1e3 / time_ps * bus_factor(test.kind, communicator.ranks))


def as_text(found: list[Answer], fidelity: str) -> str:
    """A line a test, things in order."""
    width = max(len(a.test.machine) for a in found)
    lines = [
        f"what turning things off costs: bus bandwidth in GB/s on the twin ({fidelity}) and as published",
        "",
        f"  {'':<{width + 27}}{'on the twin':^24}    {'published':^24}".rstrip(),
        f"  {'':<{width + 27}}{'on':>8}{'off':>8}{'on/off':>8}    {'on':>8}{'off':>8}{'on/off':>8}",
    ]
    last = ""
    for a in found:
        test = a.test
        if test.what != last:
            lines += ["", f"  {test.what}"]
            last = test.what
        name = f"{test.machine:<{width}}  {test.kind:<14} {format_size(test.size):>6}"
        lines.append(f"    {name}{a.on:8.1f}{a.off:8.1f}{a.factor:8.2f}    {_published(test.published)}".rstrip())
    sources = dict.fromkeys(f"{a.test.what}: {a.test.source}" for a in found if a.test.source)
    lines += ["", "  off by"]
    lines += [f"    {line}" for line in dict.fromkeys(f"{a.test.what}: {a.test.changes}" for a in found)]
    lines += ["", "  published in", *(f"    {source}" for source in sources)]
    return "\n".join(lines) + "\n"


def _published(figures: Figures | None) -> str:
    if figures is None:
        return ""
    return f"{figures.on:8.1f}{figures.off:8.1f}{figures.factor:8.2f}"


def as_json(found: list[Answer], fidelity: str) -> str:
    """Every test with six significant digits."""

    def row(a: Answer) -> dict[str, Any]:
        return {
            **a.test.model_dump(),
            "twin": {
                "on": float(f"{a.on:.6g}"),
                "off": float(f"{a.off:.6g}"),
                "ratio": float(f"{a.factor:.6g}"),
            },
        }

    whole = {"schema": 1, "fidelity": fidelity, "tests": [row(a) for a in found]}
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
