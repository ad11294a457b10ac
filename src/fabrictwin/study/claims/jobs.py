"""Claims about what jobs lose and gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fabrictwin import catalog
from fabrictwin.fabric.fabric import NETWORK, NodeKind
from fabrictwin.run.execute import Prepared, predict
from fabrictwin.study.claims.claim import Claim, Judgement, within
from fabrictwin.study.claims.settings import spec
from fabrictwin.study.jitter import Sampler
from fabrictwin.study.sockets import over_sockets
from fabrictwin.study.sources import Jitter
from fabrictwin.units import PS_PER_MS, PS_PER_S, format_time

GB = 1e9


def late_gpu() -> Claim:
    job = {"parallel": {"tp": 8}, "micro_batches": 2, "precision": "bf16"}
    clean = predict(spec(4, training=job))
    late = predict(spec(4, training=job, faults=[{"gpu": "host-1/gpu3", "late": "20 us"}]))
    longer = late.trace.end_ps - clean.trace.end_ps
    lost = 10_000 * longer / PS_PER_S
    return Claim(
        key="late",
        statement="One GPU of 10,000 that is 20 us late wastes 0.2 GPU-seconds of a collective.",
        experiment="A 7 B model on 32 H100 whose last all-reduce waits for everybody; one GPU begins 20 us late.",
        figures=(
            ("the step takes longer by", format_time(longer)),
            ("of 10,000 GPUs that wait as long", f"{lost:.3g} GPU-seconds"),
        ),
        judgement=Judgement.HOLDS if within(lost, 0.2, 0.05) else Judgement.CONDITIONS,
        why="Everybody waits for the last. It is lost once a step where nothing hides it, not once a collective: ranks "
        "that were early in one are so in the next.",
    )


def predictable() -> Claim:
    """A faster network with jitter against a slower one without, over the number of GPUs."""
    job = {"parallel": {"tp": 8, "dp": 2}, "micro_batches": 1, "precision": "bf16"}
    here = spec(2, training=job)
    sampler = Sampler(here, lambda _stage: None)
    unit = sampler.unit
    even = predict(spec(2, training=job), alter=lambda p: _slower_network(p, 1.25)).trace.end_ps
    uneven = Jitter.model_validate({"late": {"chance": 0.01, "mean": "5 ms"}})
    drawn = unit.sample(uneven, 4000, 1)
    crossing, last = None, 0.0
    for units in (1, 2, 8, 32, 128, 512):
        mean = float(sampler.steps(uneven, drawn, units, 4000, 1, {}).mean())
        last = mean
        if crossing is None and mean > even:
            crossing = units * unit.ranks_in_all
    clean = sampler.clean.trace.end_ps
    return Claim(
        key="predictable",
        statement="A predictable network lets a job use more GPUs than a faster but jittery one.",
        experiment="A 7 B model by replicas of 8 H100 that meet once a step. A fast network on which 1 % of GPUs begin a "
        "step late, by 5 ms on average, against one with 25 % less rate and no jitter.",
        figures=(
            ("fast network, clean step", format_time(clean)),
            ("slower network, every step", format_time(even)),
            ("fast network, mean step at 4,096 GPUs", format_time(round(last))),
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


def without_rdma() -> Claim:
    job = {"parallel": {"tp": 16, "dp": 1}, "micro_batches": 2, "precision": "bf16"}
    one = predict(spec(1, training={**job, "parallel": {"tp": 8, "dp": 1}})).trace.end_ps
    rdma = predict(spec(2, training=job)).trace.end_ps
    tcp = predict(spec(2, network="ethernet", training=job), alter=over_sockets).trace.end_ps
    return Claim(
        key="without-rdma",
        statement="Without RDMA between nodes, tensor parallelism across nodes loses what distribution gains.",
        experiment="A 7 B model: tensor-parallel over 8 H100 of one host, over 16 of two with RDMA at 400 Gb/s, and over "
        "16 of two with TCP at 400 Gb/s.",
        figures=(
            ("TP 8, one host", format_time(one)),
            ("TP 16, two hosts, RDMA", f"{format_time(rdma)}, {one / rdma:.2f} times as fast"),
            ("TP 16, two hosts, TCP", f"{format_time(tcp)}, {one / tcp:.2f} times as fast"),
        ),
        judgement=Judgement.HOLDS if tcp > one else Judgement.WRONG,
        why="Every layer waits for its all-reduces."
        + (" Even with RDMA two hosts are slower than one here." if rdma > one else "")
        + " Inference is not modelled: its messages are smaller, so latency weighs more.",
    )


def a100_memory() -> Claim:
    memory = catalog.gpu("a100-80").memory.value
    rows = {
        "inference, fp16": 2,
        "inference, int8": 1,
        "inference, 4 bits": 0.5,
        "training, Adam, bf16 and fp32": 16,
    }
    most = {what: memory / each / GB for what, each in rows.items()}
    return Claim(
        key="a100",
        statement="An A100 holds models of up to about 50 billion parameters.",
        experiment="80 GB over the bytes of a parameter: weights alone for inference, 16 bytes with gradients, fp32 "
        "weights and Adam's moments for training.",
        figures=tuple((what, f"{billions:.1f} billion") for what, billions in most.items()),
        judgement=Judgement.CONDITIONS,
        why="Between fp16 and int8, for inference, with nothing left for the cache of keys and values. Trained, an A100 "
        f"holds {most['training, Adam, bf16 and fp32']:.0f} billion before activations.",
    )


def distance() -> Claim:
    """The same job with its switches farther and farther apart."""
    job = {"parallel": {"tp": 8}, "micro_batches": 4, "precision": "bf16"}
    shape = {"kind": "fat-tree", "tiers": 3, "leaf_down": 16, "leaves": 2}
    figures, steps = [], {}
    for sites in (2, 8):
        hosts = 4 * sites
        for ms in (0, 1, 30):
            there = spec(hosts, topology={**shape, "pods": sites}, training=job)
            found = predict(there, alter=lambda p, ms=ms: _apart(p, ms * PS_PER_MS))  # type: ignore[misc]
            steps[sites, ms] = found.trace.end_ps
            figures.append((f"{sites} sites, {ms} ms between them", format_time(found.trace.end_ps)))
    near = max(steps[s, 1] / steps[s, 0] for s in (2, 8))
    far = max(steps[s, 30] / steps[s, 0] for s in (2, 8))
    return Claim(
        key="distance",
        statement="The best models must be trained in the smallest space.",
        experiment="A 7 B model, 32 H100 a site, data-parallel over two and eight sites; links between sites of full rate "
        "and 0, 1 and 30 ms, one ring over all.",
        figures=tuple(figures),
        judgement=Judgement.HOLDS if near > 1.05 else Judgement.CONDITIONS,
        why=f"A ring over all GPUs takes a step over the slow links for each of its ranks: 1 ms makes the step up to "
        f"{near:.1f} times as long, 30 ms {far:.1f} times. Collectives made for distance (one exchange a site, or steps "
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
