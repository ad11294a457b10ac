"""Delays that a network makes by itself, as distributions: collectives played over and over beside another job.

On a cut of the cluster (`study.compare.phase_cut`) the job has every other host and goes through a collective
several times, each when the one before is done; on the hosts between them another job's exchange, a few of whose
receivers are hot, runs all the while. Hashes that collide, pauses, drops and what is sent again are the packet
engine's own; seeds place ranks and hash anew. Every round that ends while the other job is at work is a sample,
set against the flow engine's time alone.

A cable that flaps is played by itself: once in its rounds the trunk that carries most goes down and comes back;
switches route as before unless they choose for each packet.

What a step makes of it: its rings take the factors of the large all-reduce, its exchanges those of the exchange,
and cables flap as often by GPU as an operator counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fabrictwin.base.arrays import F64, I64
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.progress import Stage, part
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_MS, PS_PER_S, format_time
from fabrictwin.catalog import FabricPreset
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.base.changes import TimedChange, flapping
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.packet_options import options_of
from fabrictwin.fabric.fabric import NETWORK, NONE, NodeKind
from fabrictwin.program import collectives
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.program.program import Communication, Program
from fabrictwin.study.compare.cut_qos import qos_of_cut
from fabrictwin.study.compare.fabrics import preset, with_fabric
from fabrictwin.study.compare.phase_cut import Cut, Load, add_phase, cut_of
from fabrictwin.study.jitter.jitter_sources import Jitter, Link, Network
from fabrictwin.study.jitter.jitter_study import Sampler, Steps
from fabrictwin.workload.captured.captured_section import PlacedCapture
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import exchange

RING, EXCHANGE, FLAP = "all-reduce 4 MiB", "exchange 4 MiB", "the same, a flap"
PROBES = {"all-reduce 64 KiB": (64 << 10, 20), RING: (4 << 20, 10), FLAP: (4 << 20, 5), EXCHANGE: (4 << 20, 20)}
# bytes a rank, rounds; the other job goes through its exchange for as long as they take alone
DOWN_PS = 10 * PS_PER_MS  # assumed
# Alibaba's HPN 7.0 at SIGCOMM 2024: 5,000 to 60,000 flaps of links a day in a pod of 15,360 GPUs; the fewest
FLAPS_A_GPU_DAY = 5000 / 15360
STEPS = 1000
SIZES = (1024, 2048, 4096, 8192, 16384)


@record
class Delay:
    """A collective's times beside another job, ascending, and alone at flow."""

    times_ps: I64
    alone_ps: int

    def at(self, share: float) -> int:
        """The time that such a share of the rounds stays within."""
        return int(
            self.times_ps[min(len(self.times_ps) - 1, max(0, int(np.ceil(share * len(self.times_ps))) - 1))]
        )

    @property
    def factors(self) -> F64:
        """Times of the time alone; at least 1."""
        found: F64 = np.maximum(self.times_ps / self.alone_ps, 1.0)
        return found


@record
class NetworkDelays:
    """One fabric's delays by probe, and steps by the number of GPUs."""

    fabric: str
    cut: str
    seeds: tuple[int, ...]
    delays: Mapping[str, Delay]
    clean_ps: int
    steps: Mapping[int, Steps]


def measure(
    spec: Spec, fabrics: Sequence[str], seeds: Sequence[int], stage: Stage, *, sizes: Sequence[int] = ()
) -> tuple[NetworkDelays, ...]:
    """Delays on each fabric and what they make of a step. Raises ConfigError."""
    if not fabrics:
        raise ConfigError("got no fabric, expected at least one", key="--fabrics")
    found = []
    for i, name in enumerate(fabrics):
        within = part(stage, i / len(fabrics), (i + 1) / len(fabrics))
        found.append(
            _on_fabric(with_fabric(spec, preset(name, {})), preset(name, {}), tuple(seeds), within, sizes)
        )
    return tuple(found)


def _on_fabric(
    spec: Spec, fabric: FabricPreset, seeds: tuple[int, ...], stage: Stage, sizes: Sequence[int]
) -> NetworkDelays:
    if fabric.transport != "rdma":
        raise ConfigError(
            f"got {fabric.name}, expected fabrics with RDMA: packets of TCP are not played", key="--fabrics"
        )
    sampler = Sampler(spec, stage)
    times: dict[str, list[int]] = {probe: [] for probe in PROBES}
    alone = dict.fromkeys(PROBES, 0)
    says = ""
    for n, seed in enumerate(seeds):
        cut = cut_of(spec, seed=seed)
        says = cut.text
        load = Load.of(sampler.job, cut.ranks // 2)
        for probe in PROBES:
            stage(f"{fabric.name}: {probe}, seed {seed}", n / len(seeds))
            alone[probe] = alone[probe] or _alone(cut, probe)
            times[probe] += _rounds(cut, spec, load, probe, alone[probe], seed)
    for probe, found in times.items():
        if not found:
            raise ConfigError(f"got no round of {probe} that ended beside the other job", key="--fabrics")
    delays = {probe: Delay(np.sort(np.array(times[probe], np.int64)), alone[probe]) for probe in PROBES}
    network = Network(
        factors=tuple(delays[RING].factors.tolist()),
        exchange=tuple(delays[EXCHANGE].factors.tolist()),
        source=f"packet: {says}",
    )
    unit = sampler.unit
    stage(f"{fabric.name}: walking steps", 0.95)
    drawn = unit.sample(Jitter(network=network), STEPS, spec.run.seed)
    longer = {"flap": int(delays[FLAP].times_ps[-1] - delays[RING].at(0.5))}
    steps = {}
    for units in [size // unit.ranks_in_all for size in sizes or SIZES if size >= unit.ranks_in_all]:
        gpus = units * unit.ranks_in_all
        flaps = gpus * FLAPS_A_GPU_DAY * sampler.clean.trace.end_ps / PS_PER_S / 86400
        jitter = Jitter(network=network, flap=Link.model_construct(chance=-math.expm1(-flaps), down=DOWN_PS))
        steps[gpus] = Steps.of(sampler.steps(jitter, drawn, units, STEPS, spec.run.seed, longer))
    return NetworkDelays(fabric.name, says, seeds, delays, sampler.clean.trace.end_ps, steps)


def delay_of(spec: Spec, job: Job | PlacedCapture, probe: str, seeds: Sequence[int]) -> Delay:
    """One probe's delay on the spec's fabric beside the exchange of a job like this one. Raises ConfigError."""
    times: list[int] = []
    alone = 0
    for seed in seeds:
        cut = cut_of(spec, seed=seed)
        alone = alone or _alone(cut, probe)
        times += _rounds(cut, spec, Load.of(job, cut.ranks // 2), probe, alone, seed)
    if not times:
        raise ConfigError(f"got no round of {probe} that ended beside the other job", key="--fabrics")
    return Delay(np.sort(np.array(times, np.int64)), alone)


def _probe(cut: Cut, probe: str, ranks: I64) -> Communication:
    size = PROBES[probe][0]
    if probe == EXCHANGE:
        return exchange(ranks[None, :], size // len(ranks), step_cost_ps=0, name=probe)
    return collectives.all_reduce(
        ranks[None, :], size, channels=1, host_of_rank=cut.host, element_bytes=4, name=probe
    )


def _program(cut: Cut, probe: str, rounds: int, load: Load | None = None, beside: int = 0) -> Program:
    """A collective on every other host, `rounds` times, and another job's exchange on the rest, `beside` times."""
    builder = ProgramBuilder(probe, len(cut.host))
    _, order = np.unique(cut.host, return_inverse=True)
    mine = np.flatnonzero(order % 2 == 0)
    every = builder.actor("this job", mine)
    label = builder.label(probe, "other")
    communication = builder.communication(_probe(cut, probe, mine), [every])
    before: list[int] = []
    for _ in range(rounds):
        before = [builder.communicate(communication, label, after=before)]
    if load is not None:
        after: Sequence[int] = ()
        for _ in range(beside):
            after = add_phase(builder, "exchange", cut.host, load, np.flatnonzero(order % 2 == 1), after=after)
    return builder.build()


def _rounds(cut: Cut, spec: Spec, load: Load, probe: str, alone_ps: int, seed: int) -> list[int]:
    rounds = PROBES[probe][1]
    flaps = _flap(cut, alone_ps) if probe == FLAP else []
    beside = -(-rounds * alone_ps // _other_ps(cut, load))
    program = _program(cut, probe, rounds, load, beside)
    fabric = cut.twin.fabric
    options = options_of(spec.run.packet, fabric.technology, seed, qos_of_cut(spec, fabric))
    try:
        trace = play(program, cut.nodes, cut.twin.start_engine("packet", cut.options(options)), flaps)
    except SimulatedError as error:
        raise ConfigError(f"a cut at packet: {error}") from None
    ends = trace.end_op_ps[:rounds]
    # the other job ends while a cable is down
    counted = ends <= (ends[-1] if flaps else trace.end_op_ps[rounds:].max())
    took: list[int] = np.diff(ends, prepend=trace.start_ps[0])[counted].tolist()
    return took


def _flap(cut: Cut, alone_ps: int) -> list[TimedChange]:
    """The trunk, else the adapter's cable, that carries most of the all-reduce goes down in its second round."""
    fabric = cut.twin.fabric
    counters = play(_program(cut, RING, 1), cut.nodes, cut.twin.start_engine("flow")).counters
    switch = fabric.node_kind == NodeKind.SWITCH
    peer = np.maximum(fabric.port_peer, 0)
    network = np.isin(fabric.port_kind, NETWORK) & (fabric.port_peer != NONE)
    trunk = network & switch[fabric.port_node] & switch[fabric.port_node[peer]]
    port = int(
        np.argmax(np.where(trunk if (counters.tx_bytes[trunk] > 0).any() else network, counters.tx_bytes, -1))
    )
    start = alone_ps + alone_ps // 2
    return flapping(port, int(fabric.port_peer[port]), start_ps=start, down_ps=DOWN_PS, up_ps=0, times=1)


def _other_ps(cut: Cut, load: Load) -> int:
    """The other job's exchange alone, at flow."""
    _, order = np.unique(cut.host, return_inverse=True)
    builder = ProgramBuilder("other", len(cut.host))
    add_phase(builder, "exchange", cut.host, load, np.flatnonzero(order % 2 == 1))
    return max(1, int(play(builder.build(), cut.nodes, cut.twin.start_engine("flow")).end_ps))


def _alone(cut: Cut, probe: str) -> int:
    trace = play(_program(cut, probe, 1), cut.nodes, cut.twin.start_engine("flow"))
    return int(trace.end_op_ps[0] - trace.start_ps[0])


def text(found: Sequence[NetworkDelays]) -> str:
    """For a terminal: delays, then steps."""
    first = found[0]
    count = min(len(delay.times_ps) for one in found for delay in one.delays.values())
    lines = [
        f"at least {count:,} rounds each beside another job's exchange, seeds {first.seeds[0]} to "
        f"{first.seeds[-1]}; {first.cut}",
        "",
        f"  {'':20}  {'':18}{'alone':>12}{'p50':>12}{'p99':>12}{'p99.9':>12}",
    ]
    for probe in PROBES:
        for one in found:
            delay = one.delays[probe]
            cells = [delay.alone_ps, delay.at(0.5), delay.at(0.99), delay.at(0.999)]
            lines.append(f"  {one.fabric:20}  {probe:18}" + "".join(f"{format_time(ps):>12}" for ps in cells))
    if count < 1000:
        lines.append("  p99.9 of fewer than 1,000 rounds is the greatest of them: rarer ones may be longer")
    lines += ["", f"  {'a step':20}  {'GPUs':>8}{'clean':>12}{'p50':>12}{'p99':>12}{'mean':>10}"]
    for one in found:
        for gpus, steps in one.steps.items():
            shown = [format_time(ps) for ps in (one.clean_ps, steps.p50, steps.p99)]
            lines.append(
                f"  {one.fabric:20}  {gpus:8,}"
                + "".join(f"{cell:>12}" for cell in shown)
                + f"{steps.mean / one.clean_ps - 1:>+10.2%}"
            )
    return "\n".join(lines) + "\n"


def data(found: Sequence[NetworkDelays]) -> dict[str, object]:
    """Plain data; times are in microseconds and seconds as the keys say."""
    return {
        "schema": 1,
        "fabrics": [
            {
                "fabric": one.fabric,
                "cut": one.cut,
                "seeds": list(one.seeds),
                "delays": {
                    probe: {
                        "rounds": len(delay.times_ps),
                        "alone_us": delay.alone_ps / 1e6,
                        "p50_us": delay.at(0.5) / 1e6,
                        "p99_us": delay.at(0.99) / 1e6,
                        "p999_us": delay.at(0.999) / 1e6,
                    }
                    for probe, delay in one.delays.items()
                },
                "clean_step_s": one.clean_ps / 1e12,
                "steps": [
                    {"gpus": gpus, "mean_s": s.mean / 1e12, "p50_s": s.p50 / 1e12, "p99_s": s.p99 / 1e12}
                    for gpus, s in one.steps.items()
                ],
            }
            for one in found
        ],
    }
