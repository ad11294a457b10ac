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
from fabrictwin.study.jitter.jitter_sources import Jitter
from fabrictwin.study.jitter.jitter_study import Sampler

GB = 1e9

MANY, LATE_PS, SAID_LOST = 10_000, 20_000_000, 0.2
SLOWER, CHANCE, MEAN_LATE_PS = 1.25, 0.01, 5 * PS_PER_MS  # of the network without jitter; of the one with it
SAID_HELD = 50  # billion parameters
SITES, HOSTS_A_SITE, MILLISECONDS = (2, 8), 4, (0, 1, 30)
UNITS = (1, 2, 8, 32, 128, 512)


def late_gpu() -> Claim:
    job = {"parallel": {"tp": 8}, "micro_batches": 2, "precision": "bf16"}
    clean = predict(spec(4, training=job))
    late = predict(spec(4, training=job, faults=[{"gpu": "host-1/gpu3", "late": format_time(LATE_PS)}]))
    longer = late.trace.end_ps - clean.trace.end_ps
    lost = MANY * longer / PS_PER_S
    return Claim(
        key="late",
        statement=f"One GPU of {MANY:,} that is {format_time(LATE_PS)} late wastes {SAID_LOST} GPU-seconds of a collective.",
        experiment=f"A 7 B model on {clean.job.program.ranks} H100 whose last all-reduce waits for everybody; one GPU begins "
        f"{format_time(LATE_PS)} late.",
        figures=(
            ("the step takes longer by", format_time(longer)),
            (f"of {MANY:,} GPUs that wait as long", f"{lost:.3g} GPU-seconds"),
        ),
        judgement=Judgement.HOLDS if within(lost, SAID_LOST, 0.05) else Judgement.CONDITIONS,
        why="Everybody waits for the last. It is lost once a step where nothing hides it, not once a collective: ranks "
        "that were early in one are so in the next.",
    )


def predictable() -> Claim:
    """A faster network with jitter against a slower one without, over the number of GPUs."""
    job = {"parallel": {"tp": 8, "dp": 2}, "micro_batches": 1, "precision": "bf16"}
    here = spec(2, training=job)
    sampler = Sampler(here, silent)
    unit = sampler.unit
    even = predict(spec(2, training=job), alter=lambda p: _slower_network(p, SLOWER)).trace.end_ps
    uneven = Jitter.model_validate({"late": {"chance": CHANCE, "mean": format_time(MEAN_LATE_PS)}})
    drawn = unit.sample(uneven, 4000, 1)
    crossing, last = None, 0.0
    for units in UNITS:
        mean = float(sampler.steps(uneven, drawn, units, 4000, 1, {}).mean())
        last = mean
        if crossing is None and mean > even:
            crossing = units * unit.ranks_in_all
    clean = sampler.clean.trace.end_ps
    return Claim(
        key="predictable",
        statement="A predictable network lets a job use more GPUs than a faster but jittery one.",
        experiment=f"A 7 B model by replicas of {unit.ranks_in_all} H100 that meet once a step. A fast network on which "
        f"{CHANCE:.0%} of GPUs begin a step late, by {format_time(MEAN_LATE_PS)} on average, against one with "
        f"{1 - 1 / SLOWER:.0%} less rate and no jitter.",
        figures=(
            ("fast network, clean step", format_time(clean)),
            ("slower network, every step", format_time(even)),
            (f"fast network, mean step at {UNITS[-1] * unit.ranks_in_all:,} GPUs", format_time(round(last))),
            ("the slower network is ahead from", f"{crossing:,} GPUs" if crossing else "no size that was tried"),
        ),
        judgement=Judgement.CONDITIONS if crossing else Judgement.WRONG,
        why="The slowest of n waits makes the step, and it grows with n: below the crossing the faster network wins, "
        "above it the even one. Where they cross depends on both figures.",
    )


def _slower_network(prepared: Prepared, times: float) -> Prepared:
    """The same with links between hosts that carry less."""
    twin = prepared.twin
    network = np.isin(twin.fabric.port_kind, NETWORK)
    payload = np.where(network, twin.fabric.port_payload_bps / times, twin.fabric.port_payload_bps)
    twin.fabric = replace(twin.fabric, port_payload_bps=payload.astype(np.int64))
    return prepared


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
