"""What control, loss and pauses cost on a fabric, measured packet by packet on a cut of the cluster.

The cut is up to `CUT_HOSTS` hosts of the cluster's kind in a network of its shape; ranks fill `hosts` of them,
scattered by a seed, so that traffic crosses the network as it does in a larger one. Two phases are played at
`packet` and at `flow` over the same routes:

    ring       an all-reduce of `RING_BYTES`, one channel a rail
    exchange   an all-to-all of experts: everybody sends to everybody at once, and a few hot GPUs get more

The ratio of their times is what `flow` does not see. It holds for the phase, the sizes and the seeds it was
measured with; a fabric or transport that the packet engine does not model has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fabrictwin.cluster.build import build
from fabrictwin.cluster.placement import place
from fabrictwin.cluster.sections import GeneratedCluster
from fabrictwin.cluster.spec import Spec
from fabrictwin.errors import ConfigError, SimulatedError
from fabrictwin.fabric.fabric import I32, Fabric
from fabrictwin.program import collectives
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.program.program import Program
from fabrictwin.run.execute import make_twin
from fabrictwin.simulate.packet_options import options_of
from fabrictwin.simulate.play import play
from fabrictwin.twin.twin import Twin
from fabrictwin.workload.groups import exchange

Phase = Literal["ring", "exchange"]
PHASES: tuple[Phase, ...] = ("ring", "exchange")

CUT_HOSTS = 32
RING_BYTES = 16 << 20
BLOCK_BYTES = 64 << 10  # between each two GPUs of the exchange
HOT, HOT_TIMES = 4, 4  # GPUs whose experts get so many times as many tokens


@dataclass(frozen=True)
class Played:
    """One phase at both fidelities, with what the ports and queue pairs counted at `packet`."""

    phase: Phase
    seed: int
    packet_ps: int
    flow_ps: int
    drops: int
    pauses: int
    marks: int
    retransmitted: int
    wait_ps: int  # of all ports

    @property
    def factor(self) -> float:
        return self.packet_ps / self.flow_ps


@dataclass(frozen=True)
class Factors:
    """Ratios of packet to flow of one fabric, with where they come from."""

    cut: str
    played: tuple[Played, ...]

    def of(self, phase: Phase) -> tuple[float, ...]:
        return tuple(p.factor for p in self.played if p.phase == phase)

    def text(self, phase: Phase) -> str:
        """`1.04 to 1.09, seeds 1 to 3`."""
        found = self.of(phase)
        if not found:
            return "not modelled"
        seeds = sorted(p.seed for p in self.played if p.phase == phase)
        span = f"{min(found):.3f}" if len(found) == 1 else f"{min(found):.3f} to {max(found):.3f}"
        return f"{span}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"

    def total(self, key: str) -> int:
        return sum(getattr(p, key) for p in self.played)


def cut_of(spec: Spec, *, hosts: int, seed: int) -> Spec:
    """A small cluster of the spec's kind, its ranks scattered by a seed."""
    assert isinstance(spec.cluster, GeneratedCluster)
    largest = max(spec.cluster.hosts, key=lambda group: group.count)
    count = min(largest.count, max(CUT_HOSTS, hosts))
    if count < hosts:
        raise spec.error("cluster.hosts", f"got {count} hosts, expected at least the {hosts} of the cut")
    group = largest.model_copy(update={"count": count})
    cluster = spec.cluster.model_copy(update={"hosts": (group,)})
    placement = spec.placement.model_copy(update={"hosts": (), "order": "scattered", "seed": seed})
    return spec.model_copy(update={"cluster": cluster, "placement": placement, "faults": ()})


def _ranks(spec: Spec, twin: Twin, hosts: int) -> tuple[I32, I32]:
    """([ranks] node, [ranks] host) of the cut's GPUs."""
    fabric = twin.fabric
    chosen = place(twin.blueprint, spec, hosts=hosts)
    parts = [fabric.gpu_node[fabric.node_host[fabric.gpu_node] == host] for host in chosen.tolist()]
    nodes = np.concatenate(parts).astype(np.int32)
    return nodes, fabric.node_host[nodes].astype(np.int32)


def program_of(phase: Phase, host: I32) -> Program:
    """A phase over ranks that live on these hosts."""
    n = len(host)
    builder = ProgramBuilder(phase, n)
    every = builder.actor("all", np.arange(n))
    label = builder.label(phase, "other")
    group = np.arange(n)[None, :]
    if phase == "ring":
        rails = int(np.bincount(host).max())
        ring = collectives.all_reduce(group, RING_BYTES, channels=rails, host_of_rank=host, element_bytes=4)
        builder.communicate(builder.communication(ring, [every]), label)
    else:
        base = exchange(group, BLOCK_BYTES, step_cost_ps=0, name="tokens")
        builder.communicate(builder.communication(base, [every]), label)
        hot = np.linspace(0, n, min(HOT, n), endpoint=False).astype(int)
        pairs = np.array([(a, b) for b in hot.tolist() for a in range(n) if a != b])
        more = collectives.send(pairs, (HOT_TIMES - 1) * BLOCK_BYTES, element_bytes=2, name="hot experts")
        builder.communicate(builder.communication(more, [every]), label)
    return builder.build()


def measure(
    spec: Spec,
    stage: Callable[[str], None],
    *,
    hosts: int = 8,
    seeds: tuple[int, ...] = (1, 2),
    phases: tuple[Phase, ...] = PHASES,
) -> Factors:
    """Play the phases on a cut of a spec whose `run.packet` says what is on. Raises ConfigError."""
    played: list[Played] = []
    cut = ""
    for seed in seeds:
        small = cut_of(spec, hosts=hosts, seed=seed)
        blueprint = build(small.cluster, spec=small)
        twin = make_twin(small, blueprint)
        nodes, host = _ranks(small, twin, hosts)
        cut = cut or (
            f"{len(nodes)} GPUs on {hosts} of {len(blueprint.hosts)} hosts, scattered; all-reduce of "
            f"{RING_BYTES >> 20} MiB, all-to-all of {BLOCK_BYTES >> 10} KiB blocks with {HOT} hot GPUs"
        )
        for phase in phases:
            stage(f"measuring {phase} packet by packet, seed {seed}")
            program = program_of(phase, host)
            played.append(_play(twin, program, nodes, phase, seed, small))
    return Factors(cut, tuple(played))


def _play(twin: Twin, program: Program, nodes: I32, phase: Phase, seed: int, spec: Spec) -> Played:
    options: Any = options_of(spec.run.packet, twin.fabric.technology, seed)
    session = twin.session("packet", options)
    try:
        trace = play(program, nodes, session)
    except SimulatedError as error:
        raise ConfigError(f"{phase} at packet: {error}") from None
    flow = play(program, nodes, twin.session("flow"))
    counters = trace.counters

    def total(column: Any) -> int:
        return 0 if column is None else int(column.sum())

    from fabrictwin.simulate.packet import PacketSession

    assert isinstance(session, PacketSession)
    return Played(
        phase=phase,
        seed=seed,
        packet_ps=trace.end_ps,
        flow_ps=flow.end_ps,
        drops=total(counters.drops),
        pauses=total(counters.pauses),
        marks=total(counters.ecn_marks),
        retransmitted=int(session.network.machine.state.qp.retransmitted.sum()),
        wait_ps=total(counters.wait_ps),
    )


def small_message_ps(twin: Twin) -> int:
    """Latency of an empty message between GPUs of the two hosts that are farthest apart in the host list."""
    fabric: Fabric = twin.fabric
    gpus = fabric.gpu_node
    names = fabric.node_name(int(gpus[0])), fabric.node_name(int(gpus[-1]))
    return twin.path(*names)[1]
