"""What a server gives a benchmark: `fabrictwin serve` without its command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_MS, PS_PER_US
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.serving.arrivals.demand import Contents, Demand, Unshared
from fabrictwin.serving.arrivals.process import arrival_times, conversations, lengths
from fabrictwin.serving.config.layout import machine
from fabrictwin.serving.config.neighbours import Beside, check_apart, job_beside, read_neighbours, server_bytes
from fabrictwin.serving.config.pools import decode_section, disaggregated, pools_bytes, pools_gpus
from fabrictwin.serving.config.section import Benchmark, Serving
from fabrictwin.serving.config.server import Server, server, serving_section
from fabrictwin.serving.engine.bench import Served, serve
from fabrictwin.serving.engine.disaggregated import Disaggregated
from fabrictwin.serving.engine.replica import Replica
from fabrictwin.serving.engine.router import router
from fabrictwin.serving.network.link_load import ALONE, LinkLoad, Neighbourhood, load_of
from fabrictwin.serving.report.bench import BenchSettings, result
from fabrictwin.serving.traces.formats import read_trace

DEFAULT_PROMPTS = 1000


@record
class Prediction:
    """A run: the server, what the client saw, the benchmark's settings and its result's fields.

    Attributes:
        server: The server.
        served: What the client saw.
        settings: What the benchmark was asked for.
        fields: What `vllm bench serve` would write.
        replicas: The engines of all replicas and their data parallel ranks as they ended, with their steps.
        gpus: GPUs of all engines.
        seed: The benchmark's.
        neighbours: Jobs and servers in the same cluster, alone and beside this one.
    """

    server: Server
    served: Served
    settings: BenchSettings
    fields: dict[str, Any]
    replicas: tuple[Replica, ...]
    gpus: int
    seed: int
    neighbours: tuple[Beside, ...] = ()


def demand_of(spec: Spec, benchmark: Benchmark) -> Demand:
    """Return the requests that a benchmark sends. Raises ConfigError."""
    rate, burstiness = float(benchmark.request_rate), float(benchmark.burstiness)
    if benchmark.trace:
        trace = benchmark.trace
        found = read_trace(spec.folder / trace.file, trace.format, limit=benchmark.num_prompts)
        if "request_rate" in benchmark.model_fields_set:
            return found.at(arrival_times(len(found), rate, burstiness=burstiness, seed=benchmark.seed))
        return found.at(np.rint(found.arrival_ps / trace.rate_scale).astype(np.int64))
    count = benchmark.num_prompts or DEFAULT_PROMPTS
    ratio = benchmark.random_range_ratio
    prompt = lengths(count, benchmark.random_input_len, ratio=ratio, seed=benchmark.seed + 1)
    output = lengths(count, benchmark.random_output_len, ratio=ratio, seed=benchmark.seed + 2)
    contents: Contents = Unshared()
    if benchmark.turns > 1 or benchmark.prefixes:
        prompt, contents = conversations(
            prompt,
            output,
            turns=benchmark.turns,
            prefixes=benchmark.prefixes,
            prefix_tokens=benchmark.prefix_tokens,
        )
    times = arrival_times(count, rate, burstiness=burstiness, seed=benchmark.seed)
    return Demand(times, prompt, output, contents)


def predict(spec: Spec, *, seed: int | None = None, neighbours: Sequence[Spec] | None = None) -> Prediction:
    """Return what a spec's server gives its benchmark, beside neighbours: those that the spec names where None.

    Raises:
        ConfigError: The spec is wrong, or vLLM would refuse it.
        SimulatedError: A request can never be scheduled.
    """
    serving = serving_section(spec)
    if seed is not None:
        benchmark = serving.benchmark.model_copy(update={"seed": seed})
        serving = serving.model_copy(update={"benchmark": benchmark})
    others = read_neighbours(spec, serving) if neighbours is None else neighbours
    if not others:
        return _run(spec, serving, ALONE)[0]
    jobs, servers = [], []
    for one in others:
        if "serving" in one.workload:
            servers.append((one, serving_section(one)))
        else:
            jobs.append(job_beside(one))
    own = [(spec, serving), *servers]
    check_apart(
        spec,
        [*((one.name, machine(one).gpus[: _gpus(asked)]) for one, asked in own)]
        + [(job.name, job.rank_node) for job in jobs],
    )
    alone = [_loading(one, asked, ALONE) for one, asked in servers]
    loads = [*(job.load for job in jobs), *(load for _, load in alone)]
    found, load = _loading(spec, serving, Neighbourhood(tuple(loads)))
    beside = []
    for place, job in enumerate(jobs):
        rest = Neighbourhood((load, *loads[:place], *loads[place + 1 :]))
        beside.append(Beside(job.name, "step", job.load.period_ps / PS_PER_MS, job.step_ms(rest)))
    for place, ((one, asked), (before, _)) in enumerate(zip(servers, alone, strict=True), len(jobs)):
        rest = Neighbourhood((load, *loads[:place], *loads[place + 1 :]))
        times = [float(run.fields["mean_tpot_ms"]) for run in (before, _run(one, asked, rest)[0])]
        beside.append(Beside(one.name, "time per output token", *times))
    return replace(found, neighbours=tuple(beside))


def _gpus(serving: Serving) -> int:
    return pools_gpus(serving) if serving.disaggregated else serving.world * serving.replicas


def _run(spec: Spec, serving: Serving, neighbours: Neighbourhood) -> tuple[Prediction, Disaggregated | None]:
    """Return what a server gives its benchmark on the links that neighbours leave, and its pools if it has any."""
    benchmark = serving.benchmark
    ready = server(spec, decode_section(serving) if serving.disaggregated else serving, neighbours)
    demand = demand_of(spec, benchmark)
    wanted, most = demand.prompt + demand.output, ready.scheduler.max_model_len
    if wanted.max() > most:
        message = (
            f"got {most}, and the longest request has {wanted.max()} tokens with its output "
            f"({(wanted > most).sum()} of {len(demand)} are too long)"
        )
        raise spec.error("workload.serving.max_model_len", message)
    servers = [ready.make() for _ in range(serving.replicas)]
    pools = None
    engines = [engine for one in servers for engine in one]
    chooses = router(serving.router, len(servers[0]))
    if serving.disaggregated:
        pools = disaggregated(spec, serving, neighbours)
        engines = [pools]
    try:
        token_ps = round(serving.host.token_us * PS_PER_US)
        served = serve(demand, engines, chooses, concurrency=benchmark.max_concurrency, token_ps=token_ps)
    except ValueError as error:
        raise spec.error("workload.serving.block_size", str(error)) from None
    ranks = tuple(rank for engine in engines for rank in engine.workers)
    settings = BenchSettings(
        model_id=ready.served.model.name,
        request_rate=float(benchmark.request_rate),
        burstiness=float(benchmark.burstiness),
        max_concurrency=benchmark.max_concurrency,
        percentiles=benchmark.metric_percentiles,
        percentile_metrics=benchmark.percentile_metrics,
        goodput=tuple(benchmark.goodput.items()),
    )
    if benchmark.trace and "request_rate" not in benchmark.model_fields_set:
        settings = replace(settings, request_rate=float("inf"))
    found = Prediction(ready, served, settings, result(served, settings), ranks, _gpus(serving), benchmark.seed)
    return found, pools


def _loading(spec: Spec, serving: Serving, neighbours: Neighbourhood) -> tuple[Prediction, LinkLoad]:
    """Return what a server gives its benchmark on the links that neighbours leave, and what it sends."""
    found, pools = _run(spec, serving, neighbours)
    if pools is not None:
        sent = pools_bytes(spec, pools)
    else:
        sent = server_bytes(spec, serving, found.server.served, found.replicas)
    return found, load_of(max(1, int(found.served.delivered_ps.max())), sent[None])
