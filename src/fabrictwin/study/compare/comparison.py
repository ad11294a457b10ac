"""Fabrics side by side: the same hosts and job on each, with what control and loss cost measured packet by packet.

For each fabric one clean step at the spec's fidelity; factors of `packet` over `flow` from a cut
(`study.compare.packet_measurements`); steps sampled under the spec's jitter with those factors on what crosses
the network; the bill and what a token costs. A fabric differs from another in its mechanisms and catalog figures
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Measure, Stage, part, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.catalog import FabricPreset
from fabrictwin.catalog.price_book import PriceBook
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.report.link_usage import busiest, utilisation
from fabrictwin.report.result import RunResult
from fabrictwin.report.summary import summary
from fabrictwin.runs.workers import in_order
from fabrictwin.study.compare.busbw import SIZES, bus_bandwidths
from fabrictwin.study.compare.fabrics import preset, with_fabric
from fabrictwin.study.compare.packet_measurements import Factors, measure, small_message_ps
from fabrictwin.study.compare.without_rdma import over_sockets
from fabrictwin.study.cost.bill_of_materials import bill_of_materials
from fabrictwin.study.cost.cluster_cost import Cost, cost, without_hosts
from fabrictwin.study.cost.network_sizing import needed
from fabrictwin.study.cost.price_ranges import FACTORS, network_range
from fabrictwin.study.cost.turning_inputs import Answer, answers
from fabrictwin.study.jitter.interference import measured as measured_sources
from fabrictwin.study.jitter.jitter_sources import ASSUMED, Jitter, Network
from fabrictwin.study.jitter.jitter_study import Sampler, Steps

STEPS = 1000
HOSTS, NETWORK = "jitter of hosts", "delays of the network"  # inputs that change steps
BUDGET = 100_000_000  # operations walked for each fabric's distribution


@record
class NetworkPrice:
    """Between which prices the network that is needed lies, its switches, and those of the spec's shape."""

    low: float
    high: float
    switches: int
    built_switches: int


@record
class OnFabric:
    """One fabric's answer."""

    name: str
    preset: FabricPreset
    cluster_line: str
    clean_ps: int
    steps: Steps
    mfu: float | None
    tokens_per_s: float | None
    exposed: dict[str, float]  # share of the step, by part of the breakdown
    busiest_link: str
    busiest_use: float
    factors: Factors | None  # None: the packet engine does not model this transport
    busbw_gbps: dict[int, float]  # of an all-reduce over all GPUs, GB/s by bytes
    latency_ps: int
    cost: Cost
    network: NetworkPrice
    exchanges: bool  # the job has an all-to-all between hosts
    steps_at: Mapping[str, Mapping[float, float]]  # median step by input, at half and at twice of it, ps

    @property
    def per_million_tokens(self) -> float | None:
        return self.cost.per_million_tokens


@record
class Comparison:
    """All fabrics, in the order asked for."""

    name: str
    layout_line: str
    gpus: int
    fidelity: str
    seed: int
    assumed_jitter: bool
    fabrics: tuple[OnFabric, ...]
    answers_at: Mapping[str, Mapping[float, Answer]]  # by input: at half and twice of it

    @property
    def best(self) -> OnFabric:
        """The one with the shortest median step."""
        return min(self.fabrics, key=lambda f: (f.steps.p50, f.name))

    @property
    def cheapest(self) -> OnFabric:
        """The one whose token costs least."""
        return min(self.fabrics, key=lambda f: (f.per_million_tokens or np.inf, f.name))


def compare(
    spec: Spec,
    fabrics: Sequence[str],
    *,
    book: PriceBook,
    own: Mapping[str, FabricPreset] | None = None,
    seeds: Sequence[int] = (1, 2),
    years: float = 4.0,
    stage: Stage = silent,
    workers: int | str | None = 1,
) -> Comparison:
    """The spec's hosts and job on each fabric, by workers.

    `seeds` are of the cuts; none leaves factors out. Raises ConfigError.
    """
    if len(set(fabrics)) != len(fabrics):
        raise ConfigError("got a fabric twice, expected each once", key="--fabrics")
    if not fabrics:
        raise ConfigError("got no fabric, expected at least one", key="--fabrics")
    chosen = [preset(name, own or {}) for name in fabrics]
    specs = [with_fabric(spec, one) for one in chosen]
    jitter = ASSUMED if spec.jitter is None else spec.validate_section("jitter", Jitter)
    asked = _Asked(jitter, tuple(seeds), book, years)
    items = [*zip(fabrics, chosen, specs, strict=True)]
    if workers == 1 or len(items) == 1:
        found = [
            _on_fabric(asked, item, part(stage, i / len(items), (i + 1) / len(items)))
            for i, item in enumerate(items)
        ]
    else:
        found = in_order(partial(_on_fabric, asked), items, workers, stage)
    layout, gpus, _ = found[-1]
    return Comparison(
        name=spec.name,
        layout_line=layout,
        gpus=gpus,
        fidelity=spec.run.fidelity,
        seed=spec.run.seed,
        assumed_jitter=spec.jitter is None,
        fabrics=tuple(one for _, _, one in found),
        answers_at=answers(
            {one.name: one.cost for _, _, one in found},
            book,
            {one.name: one.steps.p50 for _, _, one in found},
            {one.name: one.steps_at for _, _, one in found},
        ),
    )


@record
class _Asked:
    """What every fabric is asked."""

    jitter: Jitter
    seeds: tuple[int, ...]
    book: PriceBook
    years: float


def _on_fabric(
    asked: _Asked, item: tuple[str, FabricPreset, Spec], stage: Stage = silent
) -> tuple[str, int, OnFabric]:
    """The layout in words, the job's GPUs, and the answer of one fabric."""
    name, fabric, spec = item

    def said(what: str, done: Measure | None = None, /) -> None:
        stage(f"{name}: {what}", done)

    sampler = Sampler(spec, said, over_sockets if fabric.transport == "tcp" else None)
    factors = _factors(sampler, fabric, asked.seeds, said)
    steps, steps_at = _steps(sampler, asked.jitter, factors, seed=spec.run.seed, stage=said)
    answer = _answer(name, fabric, sampler, steps, factors, book=asked.book, years=asked.years, stage=said)
    return sampler.clean.job.layout_line, sampler.clean.job.program.ranks, replace(answer, steps_at=steps_at)


def _factors(sampler: Sampler, fabric: FabricPreset, seeds: Sequence[int], stage: Stage) -> Factors | None:
    if not seeds or fabric.transport != "rdma":
        return None
    groups = getattr(sampler.spec.cluster, "hosts", ())
    if max(group.count for group in groups) < 2:
        return None
    return measure(sampler.spec, sampler.job, stage, seeds=tuple(seeds))


def _steps(
    sampler: Sampler, jitter: Jitter, factors: Factors | None, *, seed: int, stage: Stage
) -> tuple[Steps, dict[str, dict[float, float]]]:
    """Sampled under the jitter with what was measured of the network, and medians at half and twice of both."""
    jitter = measured_sources(sampler.spec, sampler.job, jitter, stage)
    if factors is not None:
        measured = Network(
            factors=factors.applied("ring"), exchange=factors.applied("exchange"), source=f"packet: {factors.cut}"
        )
        jitter = replace_network(jitter, measured)
    unit = sampler.unit
    samples = max(64, min(STEPS, BUDGET // len(unit.base)))
    stage(f"walking {samples:,} steps")
    link_ps = sampler.link_ps(jitter, stage)

    def walked(of: Jitter, many: int) -> Steps:
        return Steps.of(sampler.steps(of, unit.sample(of, many, seed), unit.units, STEPS, seed, link_ps))

    fewer = max(64, samples // 4)
    network, at = jitter.network, {HOSTS: {}, NETWORK: {}}  # type: tuple[Network | None, dict[str, dict[float, float]]]
    for factor in FACTORS:
        stage(f"walking steps at {factor:g} times the jitter")
        scaled = jitter.scaled(factor)
        at[HOSTS][factor] = walked(replace_network(scaled, network), fewer).p50
        at[NETWORK][factor] = walked(replace_network(jitter, scaled.network), fewer).p50
    return walked(jitter, samples), at


def replace_network(jitter: Jitter, network: Network | None) -> Jitter:
    """The jitter with other figures for the network."""
    return jitter.model_copy(update={"network": network})


def _answer(
    name: str,
    fabric: FabricPreset,
    sampler: Sampler,
    steps: Steps,
    factors: Factors | None,
    *,
    book: PriceBook,
    years: float,
    stage: Stage,
) -> OnFabric:
    clean: RunResult = sampler.clean
    data = summary(clean)
    twin = sampler.twin
    port = busiest(clean.fabric, clean.trace, 1)
    used = utilisation(clean.fabric, clean.trace)
    work = clean.job.work
    tokens = None if work is None else work.tokens * PS_PER_S / steps.p50
    built = bill_of_materials(twin.blueprint, book)
    network = getattr(sampler.spec.cluster, "network", None)
    bill = needed(twin.blueprint, book, 1.0 if network is None else network.topology.oversubscription or 1.0)
    stage("all-reduce by size")
    factor = None if factors is None else float(np.median(factors.applied("ring")))
    return OnFabric(
        name=name,
        preset=fabric,
        cluster_line=clean.asked.cluster_line,
        clean_ps=clean.trace.end_ps,
        steps=steps,
        mfu=None if data["mfu"] is None else data["mfu"] * clean.trace.end_ps / steps.p50,
        tokens_per_s=tokens,
        exposed={
            part["name"]: part["time_ps"] / clean.trace.end_ps
            for part in data["breakdown"]
            if part["key"].startswith("exposed_") and part["time_ps"]
        },
        busiest_link=clean.fabric.link_name(int(port[0])) if len(port) else "none",
        busiest_use=float(used[port[0]]) if len(port) else 0.0,
        factors=factors,
        busbw_gbps=bus_bandwidths(
            twin, clean.job.rank_node, SIZES, factor=factor or 1.0, sockets=fabric.transport == "tcp"
        ),
        latency_ps=small_message_ps(twin),
        cost=without_hosts(cost(bill, book, years=years, tokens_per_s=tokens)),
        network=NetworkPrice(*network_range(bill, book), bill.count("switch"), built.count("switch")),
        exchanges=any(
            crosses and communication.kind == "all_to_all"
            for crosses, communication in zip(
                sampler.unit.crosses, sampler.unit.program.communications, strict=True
            )
        ),
        steps_at={},
    )
