"""Targets of `fuzz.py`: what `serve` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzzing.target import Target, files, folder, of_file


def _serving() -> Target:
    """A server's section, checked and its demand drawn where it is small; the server is not run."""
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.serving.config.server import server, serving_section
    from fabrictwin.serving.predict import demand_of

    models = folder() / "models"
    models.mkdir(exist_ok=True)
    (models / "llama-3-70b.json").write_bytes(files("examples/models/llama-3-70b.json")[0])

    def read(path: Path) -> None:
        spec = load_spec(path)
        serving = serving_section(spec)
        if getattr(spec.cluster, "hosts", None) is None or not _small(spec, serving):
            return
        server(spec, serving)
        demand_of(spec, serving.benchmark)

    (sample,) = files("examples/serve-llama-3-70b.yaml")
    more = sample + b"      burstiness: 0.5\n      max_concurrency: 8\n      goodput: {ttft: 200, tpot: 50}\n"
    more = more.replace(b"    benchmark:", b"    quantization: fp8\n    max_num_seqs: 64\n    benchmark:")
    return Target([sample, more], of_file("serving.yaml", read))


def _small(spec: Any, serving: Any) -> bool:
    """Return True where a mutated spec asks for no more than a second's work: nobody promised to be quick."""
    groups = getattr(spec.cluster, "hosts", None) or ()
    hosts = sum(getattr(group, "count", 1) for group in groups)
    return (
        hosts <= 64 and (serving.benchmark.num_prompts or 1000) <= 2000 and (serving.max_model_len or 0) <= 1 << 20
    )


_MOONCAKE = b"""{"timestamp": 0, "input_length": 1030, "output_length": 7, "hash_ids": [4, 5, 6]}
{"timestamp": 900, "input_length": 5, "output_length": 0, "hash_ids": [12]}
"""
_AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.009930+00:00,2162,5
"""
_BURSTGPT = b"""Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
"""


def _traces() -> Target:
    """A line with the format, `.gz` behind it or not, then the file."""
    from fabrictwin.serving.traces.formats import READERS, read_trace

    def read(data: bytes) -> None:
        head, _, rest = data.partition(b"\n")
        form, _, packed = head.decode("ascii", "replace").partition(".")
        path = folder() / f"{os.getpid()}-trace{'.gz' if packed == 'gz' else ''}"
        path.write_bytes(rest)
        read_trace(path, form if form in READERS else "mooncake")

    import gzip

    ids = json.dumps({"input_toks": 34, "output_toks": 2, "arrival_time_ns": 10, "input_tok_ids": list(range(34))})
    turns = json.dumps([{"conversations": [{"value": "x" * 90}, {"value": "y" * 80}]}])
    return Target(
        [
            b"mooncake\n" + _MOONCAKE,
            b"azure\n" + _AZURE,
            b"burstgpt\n" + _BURSTGPT,
            b"llmservingsim\n" + ids.encode(),
            b"sharegpt\n" + turns.encode(),
            b"azure.gz\n" + gzip.compress(_AZURE, mtime=0),
        ],
        read,
    )


def _launches() -> Target:
    """Commands and container files that start vLLM; what they launch is not judged."""
    from fabrictwin.serving.launch.command_line import read_launch
    from fabrictwin.serving.launch.container import read_containers

    def read(data: bytes) -> None:
        head, _, rest = data.partition(b"\n")
        text = rest.decode("utf-8", "replace")
        if head == b"yaml":
            text, container = read_containers(text, Path("launch.yaml"))
            read_launch(text, container.environment)
        else:
            read_launch(text)

    (script,), (compose,) = files("examples/launch/ray.sh"), files("examples/launch/compose.yaml")
    workers = b"""apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - command: [sh, -c, "ray start --head && vllm serve m -tp 8"]
            env: [{name: A, value: b}]
            resources: {limits: {rdma/hca: "1"}}
            volumeMounts: [{mountPath: /dev/shm}]
    workerTemplate: {spec: {containers: [{args: [ray, start]}], volumes: [{hostPath: {path: /dev}}]}}
"""
    switches = b"vllm serve m --no-enable-prefix-caching -q fp8 --max-model-len=32K --cudagraph-capture-sizes 1 2"
    return Target([b"sh\n" + script, b"sh\n" + switches, b"yaml\n" + compose, b"yaml\n" + workers], read)


def _operators() -> Target:
    """Measured operators: three tables and the skew, with lines of `---` between them."""
    from fabrictwin.serving.step.measured import NEEDED, MeasuredCost, OperatorFiles

    dense = "layer,tokens,time_us\n" + "".join(f"{name},{n},{n}.5\n" for name in NEEDED for n in (1, 8))
    rows = "layer,sequences,time_us\nlm_head,1,10\nlm_head,8,20\n"
    columns = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
    grid = "".join(
        f"{c},{b},{n},{k},{1 + c + n}\n" for c in (0, 8) for b in (0, 8) for n in (0, 2) for k in (16, 32)
    )
    skew = "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha\n0,n<=2,sr<=5%,kvB<=1k,kp=0,0.5\n"

    def read(data: bytes) -> None:
        parts = data.split(b"---\n")
        paths = [folder() / f"{os.getpid()}-operators-{i}.csv" for i in range(4)]
        for path, part in zip(paths, [*parts, b"", b"", b"", b""], strict=False):
            path.write_bytes(part)
        files = OperatorFiles(paths[0], paths[1], paths[2], paths[3] if len(parts) > 3 else None)
        MeasuredCost(files, 2, max_tokens=64, max_sequences=8, graph_sizes=(1, 2, 4, 8))

    return Target(["---\n".join((dense, rows, columns + grid, skew)).encode()], read)


def _measured_kernels() -> Target:
    """Measured kernels as CSV, packed CSV and Parquet."""
    import gzip
    import io

    from fabrictwin.workload.operators.measurements import read_measured

    products = b"gemm_dtype,m,n,k,latency_ms\nbfloat16,1,4096,4096,0.02\nfp8,128,4096,8192,0.07\n"
    attention = (
        b"batch_size,isl,num_heads,num_key_value_heads,kv_cache_dtype,step,latency_ms\n"
        b"4,128,32,8,bfloat16,0,0.1\n4,1,32,8,fp8,512,0.03\n"
    )
    experts = (
        b"moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency_ms\n"
        b"nvfp4,16,2688,1856,6,128,1,1,balanced,0.2\n"
    )
    samples = [products, attention, experts, gzip.compress(products, mtime=0)]
    with suppress(ImportError):
        import pyarrow
        from pyarrow import parquet

        packed = io.BytesIO()
        columns = {"gemm_dtype": ["fp8"], "m": [1], "n": [4096], "k": [4096], "latency": [0.02]}
        parquet.write_table(pyarrow.table(columns), packed)
        samples.append(packed.getvalue())
    return Target(samples, of_file("kernels.csv", read_measured))


SERVING: dict[str, Callable[[], Target]] = {
    "serving": _serving,
    "traces": _traces,
    "launches": _launches,
    "operators": _operators,
    "measured-kernels": _measured_kernels,
}
