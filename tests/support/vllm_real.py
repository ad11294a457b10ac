"""Play workloads on the scheduler of a real vLLM, on a CPU, and print its decisions.

    python vllm_real.py SOURCE lines|sums NAME...

prints a line a step, or the checksums that tests keep (`tests/serving/decisions/`). SOURCE is the folder of an
unpacked wheel, of which the Python files are enough. Runs in an environment with vLLM's dependencies, none of
which the project needs: that of `pip download --no-deps vllm==VERSION` and its requirements. Nothing of vLLM is
changed but what a machine without a GPU gets wrong: asynchronous scheduling, which the platform of CPUs
switches off, and the choice of the model runner, which asks for Triton.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from vllm_workloads import EOS, NEW, WORKLOADS, Log, Query, Settings, accepted, play, scheduling, workload

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": EOS,
}


def takes(function: Any, **values: Any) -> dict[str, Any]:
    """Those of the values that a function of this release has parameters for."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in names}


class RealPlayer:
    """The scheduler of the vLLM that is imported."""

    def __init__(self, settings: Settings, folder: str) -> None:
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        try:
            from vllm.utils.hashing import sha256
        except ImportError:
            from vllm.utils import sha256

        self._settings = settings
        self._queries: dict[str, Query] = {}
        self._scheduler, config = build(settings, folder)
        init_none_hash(sha256)
        lookahead = getattr(config, "num_hash_lookahead_tokens", 0)
        values = takes(get_request_block_hasher, num_hash_lookahead_tokens=lookahead)
        self._hasher = get_request_block_hasher(settings.block_size, sha256, **values)

    @property
    def free_blocks(self) -> int:
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def add(self, query: Query) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        name = f"{query.number:06d}"
        self._queries[name] = query
        sampling = SamplingParams(max_tokens=query.max_tokens, temperature=0.0)
        for attribute in ("_eos_token_id", "eos_token_id"):
            if hasattr(sampling, attribute):
                try:
                    setattr(sampling, attribute, EOS)
                except AttributeError:
                    continue
        self._scheduler.add_request(
            Request(
                **takes(
                    Request.__init__,
                    request_id=name,
                    prompt_token_ids=[query.token(place) for place in range(query.prompt)],
                    sampling_params=sampling,
                    pooling_params=None,
                    arrival_time=query.arrival,
                    block_hasher=self._hasher,
                    eos_token_id=EOS,
                    mm_features=None,
                    priority=query.priority,
                )
            )
        )

    def has_work(self) -> bool:
        return bool(self._scheduler.has_requests())

    def schedule(self) -> tuple[list[tuple[int, int]], list[int], Any]:
        output = self._scheduler.schedule()
        samples = {}
        for name in output.num_scheduled_tokens:
            request = self._scheduler.requests[name]
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            pending = 1 + drafts if self._settings.async_scheduling else 0
            reached = request.num_computed_tokens >= request.num_tokens + request.num_output_placeholders - pending
            chunk = request.num_computed_tokens < request.num_tokens
            samples[name] = reached and not chunk
        scheduled = [(int(name), count) for name, count in output.num_scheduled_tokens.items()]
        return scheduled, [int(name) for name in output.preempted_req_ids or ()], (output, samples)

    def update(self, step: Any) -> None:
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        output, samples = step
        names = list(output.num_scheduled_tokens)
        tokens = []
        for name in names:
            request = self._scheduler.requests.get(name)
            if request is None or not samples[name]:
                tokens.append([7] if samples[name] else [])
                continue
            drafts = output.scheduled_spec_decode_tokens.get(name, ())
            query = self._queries[name]
            gained = 1 + accepted(query.number, request.num_tokens, len(drafts))
            tokens.append([query.sampled(request.num_output_tokens + place) for place in range(gained)])
        if names:
            result = ModelRunnerOutput(
                **takes(
                    ModelRunnerOutput,
                    req_ids=names,
                    req_id_to_index={name: place for place, name in enumerate(names)},
                    sampled_token_ids=tokens,
                    logprobs=None,
                    prompt_logprobs_dict={},
                    pooler_output=[],
                )
            )
        else:
            from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

            result = EMPTY_MODEL_RUNNER_OUTPUT
        self._scheduler.update_from_output(output, result)
        count = self._settings.num_speculative_tokens
        if count and names and not self._settings.async_scheduling:
            every = self._settings.drafter != "ngram"
            live = [name for name in names if name in self._scheduler.requests]
            made = [[7] * count if every or samples[name] else [] for name in live]
            self._scheduler.update_draft_token_ids(DraftTokenIds(live, made))


def build(settings: Settings, folder: str) -> tuple[Any, Any]:
    """Return the scheduler and the configuration of a server."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
    from vllm.v1.structured_output import StructuredOutputManager

    model = ModelConfig(
        model=folder,
        tokenizer=folder,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=settings.max_model_len,
    )
    scheduler = SchedulerConfig(
        **takes(
            SchedulerConfig,
            **scheduling(settings, "watermark"),
            async_scheduling=False,
            is_encoder_decoder=False,
        )
    )
    cache = CacheConfig(block_size=settings.block_size, enable_prefix_caching=settings.enable_prefix_caching)
    parallel = ParallelConfig()
    if settings.pipeline_parallel_size > 1:
        parallel = ParallelConfig(
            pipeline_parallel_size=settings.pipeline_parallel_size, distributed_executor_backend="mp"
        )
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=cache,
        device_config=DeviceConfig(device="cpu"),
        parallel_config=parallel,
    )
    if settings.drafter:
        config.speculative_config = drafting(settings, model)
    config.scheduler_config.async_scheduling = settings.async_scheduling
    if hasattr(type(config), "use_v2_model_runner"):
        chosen = settings.v2_runner
        type(config).use_v2_model_runner = property(lambda self: chosen)
    cache.num_gpu_blocks = settings.blocks
    shape = {"block_size": settings.block_size, "num_kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16}
    shape |= takes(FullAttentionSpec, use_mla=False)
    groups = [
        KVCacheGroupSpec(
            [f"layer{place}"],
            SlidingWindowSpec(**shape, sliding_window=window) if window else FullAttentionSpec(**shape),
        )
        for place, window in enumerate(settings.windows)
    ]
    layout = KVCacheConfig(
        num_blocks=settings.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        **takes(
            KVCacheConfig,
            prefix_cache_retention_interval=getattr(cache, "prefix_cache_retention_interval", None),
        ),
    )
    kind = AsyncScheduler if settings.async_scheduling else Scheduler
    scheduler = kind(
        **takes(
            Scheduler.__init__,
            vllm_config=config,
            kv_cache_config=layout,
            structured_output_manager=StructuredOutputManager(config),
            block_size=settings.block_size,
            log_stats=False,
        )
    )
    return scheduler, config


def drafting(settings: Settings, model: Any) -> Any:
    """Return the configuration of a drafter: n-grams as vLLM builds it, others by their fields alone.

    A drafter with weights asks for a second model's files; what the scheduler reads of it are these fields.
    """
    from vllm.config import ParallelConfig, SpeculativeConfig

    built = SpeculativeConfig(
        model="ngram",
        method="ngram",
        num_speculative_tokens=settings.num_speculative_tokens,
        prompt_lookup_max=3,
        target_model_config=model,
        target_parallel_config=ParallelConfig(),
    )
    if settings.drafter != "ngram":
        built.method = settings.drafter
    return built


def main(source: str, form: str, *names: str) -> None:
    """Print, for each workload, its name, then its decisions."""
    release = ".".join(source_version(source).split(".")[:2])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        for name in names or WORKLOADS:
            chosen = workload(name)
            if release not in chosen.releases:
                continue
            player = RealPlayer(chosen.settings, folder)
            queries = chosen.traffic.queries(chosen.settings)
            log: Log = play(player, chosen.settings, queries, fills_past_done=release in NEW)
            print(f"= {name}", *(log.recorded() if form == "sums" else log.lines()), sep="\n", flush=True)


def source_version(source: str) -> str:
    """Version of the wheel unpacked in a folder."""
    return next(Path(source).glob("vllm-*.dist-info")).name.split("-")[1].removesuffix(".dist")


if __name__ == "__main__":
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu"}
    os.environ["PYTHONPATH"] = sys.argv[1] + os.pathsep + os.environ.get("PYTHONPATH", "")
    sys.path.insert(0, sys.argv[1])
    main(*sys.argv[1:])
