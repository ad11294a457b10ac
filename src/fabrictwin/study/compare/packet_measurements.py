"""What control, loss and pauses cost on a fabric, measured packet by packet on a cut of the cluster.

Phases of the job (`study.compare.phase_cut`) are played at `packet` and at `flow` over the same routes. The
ratio of their times is what `flow` does not see. It holds for the phase, the sizes and the seeds it was measured
with; a fabric or transport that the packet engine does not model has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fabrictwin.base.congestion_controls import CONTROLS, CongestionControl
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.progress import Stage
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.packet_options import options_of
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.study.compare.cut_qos import qos_of_cut
from fabrictwin.study.compare.phase_cut import HOT, PHASES, Cut, Load, Phase, cut_of, program_of
from fabrictwin.twin.twin import Twin
from fabrictwin.workload.captured.captured_section import PlacedCapture
from fabrictwin.workload.job.job import Job

SUFFERS = 1.02  # a phase that takes longer than so many times its flow time is played without control too
_ANY = CongestionControl()


@record
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


@record
class Factors:
    """Ratios of packet to flow of one fabric, with where they come from."""

    cut: str
    played: tuple[Played, ...]
    control: str = ""  # its congestion control, in words; empty: none
    uncontrolled: tuple[Played, ...] = ()  # phases that its control makes slower, played without it

    def without_control(self) -> tuple[tuple[Played, Played], ...]:
        """Phases as played and the same without congestion control, of the same seed."""
        return tuple(
            (p, bare)
            for bare in self.uncontrolled
            for p in self.played
            if (p.phase, p.seed) == (bare.phase, bare.seed)
        )

    def of(self, phase: Phase) -> tuple[float, ...]:
        """Factors as measured. Below 1, flows meet more than packets do: see `applied`."""
        return tuple(p.factor for p in self.played if p.phase == phase)

    def applied(self, phase: Literal["ring", "exchange"]) -> tuple[float, ...]:
        """Factors by which a step of the job takes longer: of rings of neighbours where its ranks are such.

        Never less than flow says, as the job's own flows may not meet.
        """
        found = (self.of("neighbours") or self.of(phase)) if phase == "ring" else self.of(phase)
        return tuple(max(1.0, factor) for factor in found)

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


def measure(
    spec: Spec,
    job: Job | PlacedCapture,
    stage: Stage,
    *,
    seeds: tuple[int, ...] = (1, 2),
    phases: tuple[Phase, ...] = PHASES,
) -> Factors:
    """Play the phases on cuts of a spec whose `run.packet` says what is on. Raises ConfigError."""
    played: list[Played] = []
    says = ""
    for seed in seeds:
        cut = cut_of(spec, seed=seed)
        load = Load.of(job, cut.ranks)
        says = f"{cut.text}; all-to-all of {load.says}, {HOT} GPUs with {load.hot_times:.3g} times as many tokens"
        for phase in phases:
            done = len(played) / (len(seeds) * len(phases) + 1)
            stage(f"measuring {phase} packet by packet, seed {seed}", done)
            played.append(play_both(cut, load, phase, seed, spec))
    if spec.placement.order != "scattered":
        stage("measuring a ring of neighbours packet by packet", 0.9)
        cut = cut_of(spec, seed=None)
        played.append(play_both(cut, Load.of(job, cut.ranks), "neighbours", seeds[0], spec))
    return Factors(says, tuple(played), *_without_control(spec, job, played, stage))


def _without_control(
    spec: Spec, job: Job | PlacedCapture, played: Sequence[Played], stage: Stage
) -> tuple[str, tuple[Played, ...]]:
    """A spec's congestion control in words, and phases of the first seed that suffer, played without it.

    A control that decides whether packets are lost cannot be taken away alone.
    """
    section = spec.run.packet
    if section is None or section.control in (None, "none") or CONTROLS[section.control].get("", _ANY).decides:
        return "", ()
    control = str(section.control)
    parameters = section.dcqcn or "by-rate"
    named = parameters if isinstance(parameters, str) else f"{parameters.like}, changed"
    says = f"{control} ({named})" if control == "dcqcn" else control
    bare = section.model_copy(update={"preset": None, "control": "none", "dcqcn": None})
    other = spec.model_copy(update={"run": spec.run.model_copy(update={"packet": bare})})
    found = []
    for one in played:
        if one.seed != played[0].seed or one.phase not in PHASES or one.factor <= SUFFERS:
            continue
        stage(f"measuring {one.phase} without {control}", 0.95)
        cut = cut_of(spec, seed=one.seed)
        found.append(play_both(cut, Load.of(job, cut.ranks), one.phase, one.seed, other))
    return says, tuple(found)


def play_both(cut: Cut, load: Load, phase: Phase, seed: int, spec: Spec) -> Played:
    """One phase on one cut. Raises ConfigError."""
    twin, program = cut.twin, program_of(phase, cut.host, load)
    options = options_of(spec.run.packet, twin.fabric.technology, seed, qos_of_cut(spec, twin.fabric))
    engine = twin.start_engine("packet", cut.options(options))
    assert engine.packets is not None
    try:
        trace = play(program, cut.nodes, engine)
    except SimulatedError as error:
        raise ConfigError(f"{phase} at packet: {error}") from None
    flow = play(program, cut.nodes, twin.start_engine("flow"))
    counters = trace.counters

    def total(column: Any) -> int:
        return 0 if column is None else int(column.sum())

    return Played(
        phase=phase,
        seed=seed,
        packet_ps=trace.end_ps,
        flow_ps=flow.end_ps,
        drops=total(counters.drops),
        pauses=total(counters.pauses),
        marks=total(counters.ecn_marks),
        retransmitted=engine.packets.losses()[1],
        wait_ps=total(counters.wait_ps),
    )


def small_message_ps(twin: Twin) -> int:
    """Latency of an empty message between GPUs of the two hosts that are farthest apart in the host list."""
    fabric: Fabric = twin.fabric
    gpus = fabric.gpu_node
    names = fabric.node_name(int(gpus[0])), fabric.node_name(int(gpus[-1]))
    return twin.path(*names)[1]
