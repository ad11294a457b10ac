"""What would make a server faster: each change is run, under the same requests.

Changes that vLLM refuses, or for which the cluster has too few GPUs, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.serving.config.section import Serving
from fabrictwin.serving.config.server import serving_section
from fabrictwin.serving.predict import Prediction, predict
from fabrictwin.serving.report.bench import latencies


@record
class Gain:
    """A change, and what the server gives with it.

    Attributes:
        change: The change in vLLM's names.
        gpus: GPUs that it takes.
        ttft_ms: Mean time to first token.
        tpot_ms: Mean time per output token.
        e2el_ms: Mean time to a request's last token.
        tokens_per_s: Output tokens a second.
    """

    change: str
    gpus: int
    ttft_ms: float
    tpot_ms: float
    e2el_ms: float
    tokens_per_s: float


def as_it_is(found: Prediction) -> Gain:
    """Return the server without a change."""
    return _gain("as it is", found)


def _gain(change: str, found: Prediction) -> Gain:
    fields = found.fields
    return Gain(
        change,
        found.gpus,
        float(fields["mean_ttft_ms"]),
        float(fields["mean_tpot_ms"]),
        float(latencies(found.served).e2el.mean()) * 1000,
        float(fields["output_throughput"]),
    )


def _changes(serving: Serving, found: Prediction) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes that may pay, each as what is set anew in `workload.serving`."""
    capability = int(catalog.gpu(found.server.served.gpu).compute_capability.value)
    if serving.operators is None:
        stored = found.server.served.weights.linear
        if stored == "none" and capability >= 89:
            yield "weights in fp8", {"quantization": "fp8"}
        if stored != "fp4" and capability >= 100:
            yield "weights in fp4", {"quantization": "fp4"}
        if serving.kv_cache_dtype == "auto" and capability >= 89:
            yield "KV cache in fp8", {"kv_cache_dtype": "fp8"}
    tokens = found.server.scheduler.max_num_batched_tokens
    for one in (tokens // 2, tokens * 2):
        yield f"max_num_batched_tokens {one}", {"max_num_batched_tokens": one}
    if serving.disaggregated is None:
        replicas = serving.replicas
        if serving.operators is None:
            twice = 2 * serving.tensor_parallel_size
            yield f"tensor_parallel_size {twice}", {"tensor_parallel_size": twice}
        yield f"replicas {replicas + 1}", {"replicas": replicas + 1}
        if replicas > 1 and serving.router != "prefix_aware":
            yield "router prefix_aware", {"router": "prefix_aware"}
        if replicas > 1 and serving.operators is None and serving.pipeline_parallel_size == 1:
            half = replicas // 2
            pools = {"prefill": {"replicas": replicas - half}, "decode": {"replicas": half}}
            yield f"prefill and decode apart, {replicas - half}:{half}", {"disaggregated": pools, "replicas": 1}
    if serving.enforce_eager:
        yield "CUDA graphs", {"enforce_eager": False}
    if not found.server.scheduler.async_scheduling and serving.speculative_config is None:
        yield "async_scheduling", {"async_scheduling": True}


def gains(spec: Spec, found: Prediction, stage: Stage = silent) -> list[Gain]:
    """Return what each change gives, the one whose requests end soonest first."""
    serving = serving_section(spec)
    answers = []
    for change, keys in _changes(serving, found):
        stage(change)
        try:
            changed = predict(with_serving(spec, keys))
        except (ConfigError, SimulatedError):
            continue
        answers.append(_gain(change, changed))
    return sorted(answers, key=lambda one: one.e2el_ms)


def with_serving(spec: Spec, keys: dict[str, Any]) -> Spec:
    """Return the spec with keys of `workload.serving` set anew."""
    section = {**spec.workload["serving"], **keys}
    return spec.with_({"workload": {"serving": section}})
