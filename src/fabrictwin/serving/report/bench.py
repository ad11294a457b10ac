"""What `vllm bench serve` prints and writes of a run (`vllm/benchmarks/serve.py`), field for field.

TTFT counts from when a request is sent. TPOT is (E2E - TTFT) / (tokens - 1) of each request with more than one
token; ITL is every gap between deliveries. Percentiles are linear between values, as numpy has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fabrictwin.base.arrays import starts_of
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.serving.arrivals.demand import Integers
from fabrictwin.serving.engine.bench import Served

WIDTH = 50
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
METRICS = (
    ("ttft", "TTFT", "Time to First Token"),
    ("tpot", "TPOT", "Time per Output Token (excl. 1st token)"),
    ("itl", "ITL", "Inter-token Latency"),
    ("e2el", "E2EL", "End-to-end Latency"),
)


@record
class Latencies:
    """Latencies of a run in seconds: by request, and of all gaps between deliveries.

    Attributes:
        ttft: To each request's first token.
        e2el: To its last.
        tpot: Between tokens on average, 0 for one token.
        gaps: Between deliveries, request by request.
        offsets: Where each request's gaps begin in `gaps`, and the end.
        outputs: Tokens of each.
    """

    ttft: Floats
    e2el: Floats
    tpot: Floats
    gaps: Floats
    offsets: Integers
    outputs: Integers


def latencies(served: Served) -> Latencies:
    """Return the latencies of a run."""
    count = len(served.demand)
    order = np.argsort(served.request, kind="stable")
    who, when = served.request[order], served.delivered_ps[order]
    deliveries = np.bincount(who, minlength=count)
    ends = np.cumsum(deliveries)
    first, last = when[ends - deliveries], when[ends - 1]
    inner = np.ones(len(when), bool)
    inner[ends - deliveries] = False
    gaps = np.diff(when, prepend=0)[inner] / PS_PER_S
    offsets = starts_of(deliveries - 1)
    outputs = np.bincount(served.request, weights=served.tokens, minlength=count).astype(np.int64)
    ttft, e2el = (first - served.sent_ps) / PS_PER_S, (last - served.sent_ps) / PS_PER_S
    tpot = np.where(outputs > 1, (e2el - ttft) / np.maximum(outputs - 1, 1), 0.0)
    return Latencies(ttft, e2el, tpot, gaps, offsets, outputs)


@record
class BenchSettings:
    """Settings of a benchmark, shown beside its results.

    Attributes:
        model_id: Name of the model.
        request_rate: Requests a second; infinite for all at once.
        burstiness: Shape of the intervals.
        max_concurrency: Requests in flight at most.
        percentiles: To report.
        percentile_metrics: Metrics to report: ttft, tpot, itl, e2el.
        goodput: Bounds in milliseconds by metric.
    """

    model_id: str
    request_rate: float
    burstiness: float = 1.0
    max_concurrency: int | None = None
    percentiles: tuple[float, ...] = (99.0,)
    percentile_metrics: tuple[str, ...] = ("ttft", "tpot", "itl")
    goodput: tuple[tuple[str, float], ...] = ()


def _statistics(values: Floats, percentiles: tuple[float, ...], name: str) -> dict[str, float]:
    ms = values * 1000 if len(values) else np.zeros(1)
    found = {f"mean_{name}_ms": float(ms.mean()), f"median_{name}_ms": float(np.median(ms))}
    found[f"std_{name}_ms"] = float(ms.std())
    for percentile in percentiles:
        word = str(int(percentile)) if int(percentile) == percentile else str(percentile)
        found[f"p{word}_{name}_ms"] = float(np.percentile(ms, percentile))
    return found


def _peaks(served: Served, times: Latencies) -> tuple[float, int]:
    """Return most output tokens in a second, and most requests that were active in one."""
    start = int(served.sent_ps.min())
    seconds = (served.delivered_ps - start) // PS_PER_S
    begin = (served.sent_ps - start) // PS_PER_S
    end = (served.sent_ps - start + np.rint(times.e2el * PS_PER_S).astype(np.int64)) // PS_PER_S
    change = np.zeros(int(end.max()) + 2, np.int64)
    np.add.at(change, begin, 1)
    np.add.at(change, end + 1, -1)
    return float(np.bincount(seconds).max()), int(np.cumsum(change).max())


def _goodput(times: Latencies, bounds: tuple[tuple[str, float], ...]) -> int:
    good = np.ones(len(times.ttft), bool)
    for name, bound_ms in bounds:
        good &= getattr(times, name) <= bound_ms / 1000
    return int(good.sum())


def result(served: Served, settings: BenchSettings) -> dict[str, Any]:
    """Return the fields of the JSON that `vllm bench serve --save-result --save-detailed` writes, but for the
    date.
    """
    times = latencies(served)
    duration = float(served.delivered_ps.max() - served.sent_ps.min()) / PS_PER_S
    count = len(served.demand)
    total_in, total_out = int(served.demand.prompt.sum()), int(times.outputs.sum())
    peak_tokens, peak_requests = _peaks(served, times)
    rate = settings.request_rate
    fields: dict[str, Any] = {
        "endpoint_type": "vllm",
        "backend": "vllm",
        "label": None,
        "model_id": settings.model_id,
        "tokenizer_id": settings.model_id,
        "num_prompts": count,
        "request_rate": "inf" if rate == float("inf") else rate,
        "burstiness": settings.burstiness,
        "max_concurrency": settings.max_concurrency,
        "duration": duration,
        "completed": count,
        "failed": 0,
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": count / duration,
        "request_goodput": _goodput(times, settings.goodput) / duration if settings.goodput else None,
        "output_throughput": total_out / duration,
        "total_token_throughput": (total_in + total_out) / duration,
        "input_lens": served.demand.prompt.tolist(),
        "output_lens": times.outputs.tolist(),
        "ttfts": times.ttft.tolist(),
        "itls": [
            times.gaps[start:stop].tolist() for start, stop in zip(times.offsets, times.offsets[1:], strict=False)
        ],
        "start_times": (served.sent_ps / PS_PER_S).tolist(),
        "generated_texts": [""] * count,
        "errors": [""] * count,
        "max_output_tokens_per_s": peak_tokens,
        "max_concurrent_requests": peak_requests,
        "rtfx": 0.0,
    }
    values = {"ttft": times.ttft, "tpot": times.tpot[times.outputs > 1], "itl": times.gaps, "e2el": times.e2el}
    for name in settings.percentile_metrics:
        fields |= _statistics(values[name], settings.percentiles, name)
    return fields


def table(fields: dict[str, Any], settings: BenchSettings) -> str:
    """Return the table that `vllm bench serve` prints."""
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}"]

    def line(label: str, value: object, form: str = "") -> None:
        lines.append(f"{label:<40} {format(value, f'<10{form}')}")

    line("Successful requests:", fields["completed"])
    line("Failed requests:", fields["failed"])
    if settings.max_concurrency is not None:
        line("Maximum request concurrency:", settings.max_concurrency)
    if settings.request_rate != float("inf"):
        line("Request rate configured (RPS):", settings.request_rate, ".2f")
    line("Benchmark duration (s):", fields["duration"], ".2f")
    line("Total input tokens:", fields["total_input_tokens"])
    line("Total generated tokens:", fields["total_output_tokens"])
    line("Request throughput (req/s):", fields["request_throughput"], ".2f")
    if settings.goodput:
        line("Request goodput (req/s):", fields["request_goodput"], ".2f")
    line("Output token throughput (tok/s):", fields["output_throughput"], ".2f")
    line("Peak output token throughput (tok/s):", fields["max_output_tokens_per_s"], ".2f")
    line("Peak concurrent requests:", fields["max_concurrent_requests"], ".2f")
    line("Total token throughput (tok/s):", fields["total_token_throughput"], ".2f")
    for name, short, long in METRICS:
        if name not in settings.percentile_metrics:
            continue
        lines.append(f"{long:-^{WIDTH}}")
        line(f"Mean {short} (ms):", fields[f"mean_{name}_ms"], ".2f")
        line(f"Median {short} (ms):", fields[f"median_{name}_ms"], ".2f")
        for percentile in settings.percentiles:
            word = str(int(percentile)) if int(percentile) == percentile else str(percentile)
            line(f"P{word} {short} (ms):", fields[f"p{word}_{name}_ms"], ".2f")
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def requests_columns(served: Served) -> dict[str, list[int] | list[float]]:
    """Return columns with a row a request: what it asked for, where it went, when it got its tokens."""
    times = latencies(served)
    return {
        "request": list(range(len(served.demand))),
        "replica": served.replica.tolist(),
        "sent_s": (served.sent_ps / PS_PER_S).tolist(),
        "input_tokens": served.demand.prompt.tolist(),
        "output_tokens": times.outputs.tolist(),
        "cached_tokens": served.hits.tolist(),
        "preemptions": served.preemptions.tolist(),
        "ttft_s": times.ttft.tolist(),
        "tpot_s": times.tpot.tolist(),
        "e2el_s": times.e2el.tolist(),
    }


def requests_csv(served: Served) -> str:
    """Return the columns of requests as one line each."""
    columns = requests_columns(served)
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(f"{cell:.9f}" if isinstance(cell, float) else str(cell) for cell in row) for row in rows]
    return "\n".join([",".join(columns), *lines, ""])
