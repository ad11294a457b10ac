"""Jobs and servers beside a server in one cluster: what they send, and what it costs each.

`workload.serving.neighbours` names their specs, which have the same cluster and a placement of their own. A job's
step is played by the flow engine and repeats; a server counts by its mean over its benchmark. The server runs on
the links that they leave, and each of them once more on what the server leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fabrictwin.base.arrays import F64, I32
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_MS
from fabrictwin.cluster.spec.spec import Spec, load_spec
from fabrictwin.engines.base.play import play
from fabrictwin.program.program import Program
from fabrictwin.serving.config.layout import Machine, machine
from fabrictwin.serving.config.section import Serving
from fabrictwin.serving.engine.replica import STEP_FIELDS, Replica
from fabrictwin.serving.network.link_load import LinkLoad, Neighbourhood, load_of
from fabrictwin.serving.network.port_bytes import step_bytes
from fabrictwin.serving.step.analytic import ServedModel
from fabrictwin.workload.step.training_step import lower

SLICES = 16
"""Of a job's step."""
KEY = "workload.serving.neighbours"


@record
class Beside:
    """A neighbour's time alone and beside the server: a job's step, or a server's mean time per token, ms."""

    name: str
    what: str
    alone_ms: float
    beside_ms: float


@record
class JobBeside:
    """A job on the server's cluster."""

    name: str
    found: Machine
    program: Program
    rank_node: I32
    load: LinkLoad

    def step_ms(self, neighbours: Neighbourhood) -> float:
        """Return how long a step takes beside others, at the mean of what they leave of each link."""
        twin = machine(self.found.spec).twin
        mean = Neighbourhood(tuple(steady(load) for load in neighbours.loads))
        twin.link_rate_bps.update(mean.rates(twin, (0,) * len(mean.loads)))
        return play(self.program, self.rank_node, twin.start_engine("flow")).end_ps / PS_PER_MS


def steady(load: LinkLoad) -> LinkLoad:
    """Return a load as its mean over the period."""
    return LinkLoad(load.period_ps, load.bps.mean(axis=0, keepdims=True))


def read_neighbours(spec: Spec, serving: Serving) -> list[Spec]:
    """Return the neighbours' specs. Raises ConfigError where one is of another cluster."""
    found = []
    for place, name in enumerate(serving.neighbours):
        try:
            one = load_spec(spec.folder / name)
        except ConfigError as error:
            if error.file is None or str(error.file) == str(spec.folder / name):
                raise
            raise spec.error(f"{KEY}[{place}]", error.message) from None
        if one.cluster != spec.cluster:
            raise spec.error(f"{KEY}[{place}]", f"got {name!r}, whose cluster is another, expected the same")
        found.append(one)
    return found


def job_beside(spec: Spec) -> JobBeside:
    """Return the job of a spec, and what its step sends, slice by slice. Raises ConfigError."""
    found = machine(spec)
    lowered = lower(spec, found.blueprint, found.twin.fabric)
    period = play(lowered.program, lowered.rank_node, found.twin.start_engine("flow")).end_ps
    engine = found.twin.start_engine("flow")
    engine.post(lowered.program.operations, lowered.program.communications, lowered.rank_node)
    counts = [np.zeros(found.twin.fabric.ports)]
    for place in range(1, SLICES + 1):
        engine.advance(until_ps=place * period // SLICES)
        counts.append(engine.counters().tx_bytes.astype(float))
    load = load_of(period, np.diff(counts, axis=0))
    return JobBeside(spec.name, found, lowered.program, lowered.rank_node, load)


def server_bytes(spec: Spec, serving: Serving, served: ServedModel, replicas: Sequence[Replica]) -> F64:
    """Return the bytes that a server sent over each port, of all ranks' steps, of shape [ports]."""
    found = machine(spec)
    tokens = STEP_FIELDS.index("tokens")
    sent = np.zeros(found.twin.fabric.ports)
    data = serving.data_parallel_size
    for number in range(serving.replicas):
        ranks = replicas[number * data : (number + 1) * data]
        steps = max(len(rank.steps) for rank in ranks)
        if steps:
            mean = sum(int(rank.steps[:, tokens].sum()) for rank in ranks) / steps / data
            where = found.place(serving, number * serving.world)
            sent += steps * step_bytes(found.twin, found.nccl, where, served, max(mean, 1.0))
    return sent


def check_apart(spec: Spec, gpus: Iterable[tuple[str, I32]]) -> None:
    """Raise ConfigError where two have a GPU in common."""
    owner: dict[int, str] = {}
    fabric = machine(spec).twin.fabric
    for name, nodes in gpus:
        for node in nodes.tolist():
            if node in owner:
                both = f"{owner[node]} and {name}"
                raise spec.error(KEY, f"got {fabric.node_name(node)} for {both}, expected GPUs of their own")
        owner |= dict.fromkeys(nodes.tolist(), name)
