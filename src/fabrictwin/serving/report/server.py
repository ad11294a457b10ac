"""What is said of a server beside its benchmark: KV blocks, steps, and results without what each request did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fabrictwin.base.units import PS_PER_S
from fabrictwin.catalog.error_ranges import FIRST_TOKEN, NEXT_TOKEN, ErrorRange, error_ranges
from fabrictwin.serving.config.server import Server
from fabrictwin.serving.engine.replica import STEP_FIELDS, Replica
from fabrictwin.serving.predict import Prediction

RANGED = {"mean_ttft_ms": FIRST_TOKEN, "mean_tpot_ms": NEXT_TOKEN}
DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")


def without_details(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a result without what stands for each request, as without `--save-detailed`."""
    return {key: value for key, value in fields.items() if key not in DETAILS}


def server_figures(fields: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the figures of a result as one row, under the names of `vllm bench serve`."""
    said = without_details(dict(fields)).items()
    return {key: value for key, value in said if isinstance(value, int | float) and not isinstance(value, bool)}


def cache_lines(server: Server) -> list[str]:
    """Return what vLLM logs of an engine's KV cache."""
    layout = server.layout
    tokens = (layout.blocks - 1) * layout.block_size // max(1, len(layout.windows))
    share = tokens / layout.max_model_len
    return [
        f"GPU KV cache size: {tokens:,} tokens",
        f"Maximum concurrency for {layout.max_model_len:,} tokens per request: {share:.2f}x",
    ]


def headline(found: Prediction) -> list[str]:
    """Return lines about the server: its KV cache, as vLLM logs it, its steps, and what was found cached."""
    server = found.server
    steps = sum(len(replica.steps) for replica in found.replicas)
    computed = sum(int(replica.steps[:, STEP_FIELDS.index("tokens")].sum()) for replica in found.replicas)
    prompt = int(found.served.demand.prompt.sum())
    preempted = int(found.served.preemptions.sum())
    group, pipeline = server.served.group, server.served.pipeline
    data = server.data
    more = f", DP {data}" if data > 1 else ""
    more += ", EP" if server.served.experts.whole else ""
    return [
        f"vLLM {server.release.name}: {len(found.replicas) // data} × (TP {group.size}, PP {pipeline}{more}) on "
        f"{found.gpus} {server.served.gpu}",
        *cache_lines(server),
        f"{steps:,} steps of {computed / steps:.1f} tokens, "
        f"{preempted} preemptions, {int(found.served.hits.sum()) / prompt:.1%} of prompts cached",
        *(
            f"beside it {one.name}: {one.what} {one.beside_ms:,.2f} ms, alone {one.alone_ms:,.2f} ms"
            for one in found.neighbours
        ),
    ]


def served_ranges(found: Prediction) -> dict[str, ErrorRange]:
    """Return what means of servers were off by: nothing is fitted to any, so all that were compared judge."""
    known = error_ranges("served")
    compared, server = known.compared, found.server
    outside = []
    if server.served.gpu not in compared["gpus"]:
        outside.append(f"no measured server on {server.served.gpu} was compared")
    size = server.served.group.size * server.served.pipeline
    if size > compared["most_gpus"]:
        outside.append(f"{size} GPUs a replica, compared were up to {compared['most_gpus']}")
    if server.served.model.experts is not None:
        outside.append("of models of experts one was compared, in fp8 under vLLM 0.12")
    longest = int(found.served.demand.prompt.max())
    if longest > compared["longest_input"]:
        outside.append(f"prompts of {longest:,} tokens, compared were up to {compared['longest_input']:,}")
    return {key: known.of((name,), outside) for key, name in RANGED.items()}


def range_lines(found: Prediction) -> list[str]:
    """Return the ranges of both mean times, in ms."""
    lines = ["Range of the means, by measured servers (half, nine in ten):"]
    ranges = served_ranges(found)
    for key, one in ranges.items():
        (a, b), (c, d) = one.of_time(float(found.fields[key]))
        lines.append(f"  {one.like}: {a:.1f} to {b:.1f} ms, {c:.1f} to {d:.1f} ms; {one.rows} rows")
    outside = dict.fromkeys(each for one in ranges.values() for each in one.outside)
    return lines + [f"  outside of what was compared: {each}" for each in outside]


def steps_csv(replicas: Iterable[Replica]) -> str:
    """Return one line a step: when it ran, what was in it, what waited."""
    lines = ["replica,launched_s,done_s," + ",".join(STEP_FIELDS[2:])]
    for number, replica in enumerate(replicas):
        for launched, done, *counts in replica.steps.tolist():
            times = f"{launched / PS_PER_S:.9f},{done / PS_PER_S:.9f}"
            lines.append(f"{number},{times}," + ",".join(map(str, counts)))
    return "\n".join([*lines, ""])
