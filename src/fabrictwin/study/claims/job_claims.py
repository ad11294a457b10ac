"""Claims about what jobs lose and gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.progress import silent
from fabrictwin.base.units import PS_PER_MS, PS_PER_S, format_time
from fabrictwin.fabric.fabric import NETWORK, NodeKind
from fabrictwin.runs.execute import Prepared, predict
from fabrictwin.study.claims.claim import Claim, Judgement, within
from fabrictwin.study.claims.claim_settings import spec
from fabrictwin.study.compare.fabrics import preset, with_fabric
from fabrictwin.study.jitter.jitter_sources import Jitter, Network
from fabrictwin.study.jitter.jitter_study import Sampler
from fabrictwin.study.jitter.network_delays import Delay, delay_of

GB = 1e9

HOSTS, LATE_PS, SAID_LOST = 1250, 20_000_000, 0.2
NEAR, JITTERY, PROBE, SEEDS = (
    256,
    "roce-400g",
    "all-reduce 4 MiB",
    (1, 2),
)  # what is measured: hosts, fabric, rounds
SAID_HELD = 50  # billion parameters
SITES, HOSTS_A_SITE, MILLISECONDS = (2, 8), 4, (0, 1, 30)
UNITS = (1, 16, 128, 1250)


def late_gpu() -> Claim:
    """A GPU that is late in a job of 10,000, all of which are simulated."""
    job = {"parallel": {"tp": 8}, "micro_batches": 2, "precision": "bf16"}
    rails = {"kind": "rail-optimised"}
    clean = predict(spec(HOSTS, topology=rails, training=job))
    fault = {"gpu": f"host-{HOSTS // 2}/gpu3", "late": format_time(LATE_PS)}
    late = predict(spec(HOSTS, topology=rails, training=job, faults=[fault]))
    longer, many = late.trace.end_ps - clean.trace.end_ps, clean.job.program.ranks
    lost = many * longer / PS_PER_S
    said = f"One GPU of {many:,} that is {format_time(LATE_PS)} late"
    return Claim(
        key="late",
        statement=f"{said} wastes {SAID_LOST} GPU-seconds of a collective.",
        experiment=f"A 7 B model on {many:,} H100, all of them simulated, whose last all-reduce waits for everybody; one "
        f"GPU begins {format_time(LATE_PS)} late.",
        figures=(
            ("clean step", format_time(clean.trace.end_ps)),
            ("the step takes longer by", format_time(longer)),
            (f"lost on {many:,} GPUs", f"{lost:.3g} GPU-seconds"),
        ),
        judgement=Judgement.HOLDS if within(lost, SAID_LOST, 0.05) else Judgement.CONDITIONS,
        why="Everybody waits for the last. It is lost once a step where nothing hides it, not once a collective: ranks "
        "that were early in one are so in the next.",
    )


def predictable() -> Claim:
    """The same mean bandwidth with the tail of a measured fabric and without one, over the number of GPUs."""
    job = {"parallel": {"tp": 8, "dp": 2}, "micro_batches": 1, "precision": "bf16"}
    sampler = Sampler(spec(2, training=job), silent)
    factors = _measured(sampler).factors
    unit, mean = sampler.unit, float(factors.mean())
    tail = Jitter(network=Network(factors=tuple(factors.tolist()), source=JITTERY))

    def even(factor: float) -> float:
        network = Network(factors=(factor,), source="even")
        return float(unit.sample(Jitter(network=network), 1, 1)[0])

    drawn = unit.sample(tail, 4000, 1)
    by_size = {n: float(sampler.steps(tail, drawn, n, 4000, 1, {}).mean()) for n in UNITS}
    low, high = mean, float(factors.max())
    for _ in range(24):  # the even network that is as slow as the other at the largest size
        middle = (low + high) / 2
        low, high = (middle, high) if even(middle) < by_size[UNITS[-1]] else (low, middle)
    less, many = 1 - mean / low, UNITS[-1] * unit.ranks_in_all
    rounds = ", ".join(f"{value:.2f}" for value in (np.median(factors), mean, np.quantile(factors, 0.99)))
    return Claim(
        key="predictable",
        statement="A predictable network lets a job use more GPUs than a faster but jittery one.",
        experiment=f"{PROBE} of {JITTERY} beside another job's exchange, packet by packet, {len(factors)} rounds; a 7 B "
        f"model by replicas of {unit.ranks_in_all} H100 that meet once a step, whose all-reduces take longer as these "
        "rounds do, or all by their mean: the same mean bandwidth with its tail and without.",
        figures=(
            ("rounds, of the time alone: p50, mean, p99", rounds),
            ("every round as the mean, every step", format_time(round(even(mean)))),
            *(
                (f"with the tail, mean step of {n * unit.ranks_in_all:,} GPUs", format_time(round(step)))
                for n, step in by_size.items()
            ),
            (f"an even network is as fast at {many:,} GPUs with", f"{less:.1%} less bandwidth on average"),
        ),
        judgement=Judgement.HOLDS if less > 0.05 else Judgement.CONDITIONS if less > 0 else Judgement.WRONG,
        why="The slowest of n rounds makes the step, and with n it comes to the end of the tail, of which the mean says "
        "nothing. What the even network may lack is the distance from the mean to that end, where nothing hides it.",
    )


def _measured(sampler: Sampler) -> Delay:
    """Rounds on a large cluster's cut beside the exchange of a job like the sampler's."""
    large = spec(NEAR, topology={"kind": "rail-optimised"}, training={"precision": "bf16"})
    return delay_of(with_fabric(large, preset(JITTERY, {})), sampler.job, PROBE, SEEDS)


def a100_memory() -> Claim:
    memory = catalog.gpu("a100-80").memory.value
    rows = {
        "inference, fp16": 2,
        "inference, int8": 1,
        "inference, 4 bits": 0.5,
        "training, Adam, bf16 and fp32": 16,
    }
    most = {what: memory / each / GB for what, each in rows.items()}
    below = max((what for what in most if most[what] < SAID_HELD), key=lambda what: most[what])
    above = min((what for what in most if most[what] >= SAID_HELD), key=lambda what: most[what])
    return Claim(
        key="a100",
        statement=f"An A100 holds models of up to about {SAID_HELD} billion parameters.",
        experiment=f"{memory / GB:.0f} GB over the bytes of a parameter: weights alone for inference, "
        f"{rows['training, Adam, bf16 and fp32']} bytes with gradients, fp32 weights and Adam's moments for training.",
        figures=tuple((what, f"{billions:.1f} billion") for what, billions in most.items()),
        judgement=Judgement.CONDITIONS if min(most.values()) < SAID_HELD < max(most.values()) else Judgement.WRONG,
        why=f"{SAID_HELD} billion lie between {below.partition(', ')[2]} and {above.partition(', ')[2]}, for inference, with nothing left for the cache of keys and values. Trained, an A100 "
        f"holds {most['training, Adam, bf16 and fp32']:.0f} billion before activations.",
    )


def distance() -> Claim:
    """The same job with its switches farther and farther apart."""
    job = {"parallel": {"tp": 8}, "micro_batches": 4, "precision": "bf16"}
    shape = {"kind": "fat-tree", "tiers": 3, "leaf_down": 16, "leaves": 2}
    figures, steps = [], {}
    for sites in SITES:
        hosts = HOSTS_A_SITE * sites
        for ms in MILLISECONDS:
            there = spec(hosts, topology={**shape, "pods": sites}, training=job)
            found = predict(there, alter=lambda p, ms=ms: _apart(p, ms * PS_PER_MS))  # type: ignore[misc]
            steps[sites, ms] = found.trace.end_ps
            figures.append((f"{sites} sites, {ms} ms between them", format_time(found.trace.end_ps)))
    none, short, long = MILLISECONDS
    near = max(steps[s, short] / steps[s, none] for s in SITES)
    far = max(steps[s, long] / steps[s, none] for s in SITES)
    return Claim(
        key="distance",
        statement="The best models must be trained in the smallest space.",
        experiment=f"A 7 B model, {8 * HOSTS_A_SITE} H100 a site, data-parallel over {SITES[0]} and {SITES[1]} sites; links "
        f"between sites of full rate and {', '.join(map(str, MILLISECONDS))} ms, one ring over all.",
        figures=tuple(figures),
        judgement=Judgement.HOLDS if near > 1.05 else Judgement.CONDITIONS,
        why=f"A ring over all GPUs takes a step over the slow links for each of its ranks: {short} ms makes the step up "
        f"to {near:.2f} times as long, {long} ms {far:.2f} times. Collectives made for distance (one exchange a site, or steps "
        "between exchanges) are not modelled; they trade the same bytes for fewer round trips.",
    )


def _apart(prepared: Prepared, more_ps: int) -> Prepared:
    """The same with core switches so much farther from everything below them."""
    twin = prepared.twin
    fabric = twin.fabric
    tier = fabric.node_tier
    top = (fabric.node_kind == NodeKind.SWITCH) & (tier == tier.max())
    peer = np.maximum(fabric.port_peer, 0)
    # half on the way up, half on the way down: a path between sites crosses both
    up = np.isin(fabric.port_kind, NETWORK) & (top[fabric.port_node] | top[fabric.port_node[peer]])
    latency = fabric.port_latency_ps + np.where(up & (fabric.port_peer >= 0), more_ps // 2, 0)
    twin.fabric = replace(fabric, port_latency_ps=latency)
    return prepared
