"""Targets of `fuzz.py`: traces of jobs that ran elsewhere, and captured jobs."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fuzzing.target import Target, folder, of_file

_LAYERS = (
    b"HYBRID_DATA_MODEL model_parallel_NPU_group: 2\n1\nfc -1 20 ALLGATHER 4096 30 NONE 0 40 ALLREDUCE 1024 2\n"
)
_GOAL = b"num_ranks 2\nrank 0 {\nl1: calc 9 cpu 0\nl2: send 10b to 1 tag 5\nl2 requires l1\n}\nrank 1 {\nl1: recv 10b from 0 tag 5\n}\n"
_CALL = {
    "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2,
    "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "stream": 20, "device": 0, "correlation": 2,
}  # fmt: skip
_KINETO = {
    "distributedInfo": {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10.0, "dur": 5.5, "args": {"stream": 7}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "ts": 20.0, "dur": 3, "args": _CALL},
    ],
}
_TENSOR = [7, 8, 0, 512, 4, "cuda:0"]
_EXECUTION = {
    "schema": "1.1.0-chakra.0.0.4",
    "nodes": [
        {"id": 2, "name": "aten::mm", "ctrl_deps": 1, "attrs": [{"name": "op_schema", "value": "aten::mm()"}],
         "inputs": {"values": [_TENSOR, _TENSOR], "shapes": [[16, 32], [32, 16]], "types": ["Tensor(float)"]},
         "outputs": {"values": [_TENSOR], "shapes": [[16, 16]], "types": ["Tensor(float)"]}},
        {"id": 3, "name": "record_param_comms", "ctrl_deps": 1, "attrs": [],
         "inputs": {"values": [[_TENSOR], 33, ["0", ""], 0, "allreduce", [], [], 0, 1, 2], "shapes": [[[512]]],
                    "types": ["GenericList[Tensor(float)]"]}},
    ],
}  # fmt: skip
_DUMP = {
    "rank": 0,
    "pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}},
    "entries": [
        {"collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "process_group": ["0", ""], "time_created_ns": 5,
         "input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": ["Float"]}
    ],
}  # fmt: skip
_CAPTURED = {
    "format": "fabrictwin captured job", "version": 1, "world": 4, "groups": [{"name": "g", "members": ["0-1", "2-3"]}],
    "classes": [
        {"ranks": "0-1", "operations": [{"compute": "a", "gemm": [8, 8, 8, 1]}, {"send": 2, "bytes": 64},
                                        {"collective": "all_reduce", "group": "g", "bytes": 64, "element": 4}]},
        {"ranks": "2-3", "operations": [{"receive": -2, "bytes": 64},
                                        {"collective": "all_reduce", "group": "g", "bytes": 64, "element": 4}]},
    ],
}  # fmt: skip


def _traces() -> Target:
    """Any file, recognised by its content, put together and written again."""
    from fabrictwin.interchange import chakra
    from fabrictwin.interchange.import_report import report
    from fabrictwin.interchange.read_traces import Given, read_traces
    from fabrictwin.workload.captured.captured_file import from_data, to_data

    def read(data: bytes) -> None:
        path = folder() / f"{os.getpid()}-trace.0"
        path.write_bytes(data)
        job = read_traces([path], Given(world=4))
        report(job)
        assert from_data(to_data(job), "again") == job

    attributes = {"comm_type": 0, "comm_size": 4096, "is_cpu_op": False}
    nodes = [chakra.Node(0, "gemm", 4, duration_us=5), chakra.Node(1, "sum", 7, [0], attributes=attributes)]
    plain = [json.dumps(one).encode() for one in (_KINETO, _EXECUTION, _DUMP)]
    return Target(
        [*plain, pickle.dumps(_DUMP, 2), chakra.written(nodes), _GOAL, _LAYERS, gzip.compress(plain[0], mtime=0)],
        read,
    )


def _captured() -> Target:
    """A captured job, matched among its ranks."""
    from fabrictwin.workload.captured.captured_file import read_captured
    from fabrictwin.workload.captured.captured_graph import MatchedGraph, parts_of

    def read(path: Path) -> None:
        job = read_captured(path)
        if job.world <= 64:
            MatchedGraph(job, parts_of(job, np.zeros(job.world, bool), fold=True)).refuse_circle()

    return Target([json.dumps(_CAPTURED).encode()], of_file("captured.json", read))


def _frameworks() -> Target:
    """Configurations of training frameworks, each kind under the name that its files have."""
    from fabrictwin.interchange.frameworks.read_config import Beside, read_text_config

    samples = [
        b"TP=$((4*2))\nA=(\n --num-layers 32 --hidden-size 4096 # wide\n --swiglu\n)\nif [ $TP -gt 1 ]; then\n"
        b'  A+=("--sequence-parallel --bf16")\nfi\ntorchrun p.py ${A[@]} --num-attention-heads ${H:-32} \\\n'
        b"--tensor-model-parallel-size $TP --seq-length 4096 --micro-batch-size 1 --moe-layer-freq '([0]*3+[1]*29)'\n",
        b'{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},\n'
        b'"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "mics_shard_size": 8}}',
        b'[model]\nflavor = "70B"\n[training]\nseq_len = 8192\n[parallelism]\ntensor_parallel_degree = 8\n'
        b'pipeline_parallel_schedule = "Interleaved1F1B"\npipeline_parallel_degree = 4\n',
        b"trainer: {precision: bf16}\nmodel:\n  num_layers: 12\n  hidden_size: 768\n  num_attention_heads: 12\n"
        b"  encoder_seq_length: 4096\n  max_position_embeddings: ${.encoder_seq_length}\n  micro_batch_size: 4\n",
    ]
    beside = Beside(sequence=4096, vocabulary=32000)

    def read(data: bytes) -> None:
        name = {b"{": "ds.json", b"[": "titan.toml", b"t": "nemo.yaml"}.get(data[:1], "train.sh")
        assert read_text_config(data.decode("utf-8", "replace"), name, beside).yaml

    return Target(samples, read)


JOB_TRACES: dict[str, Callable[[], Target]] = {
    "job-trace": _traces,
    "captured-job": _captured,
    "framework-config": _frameworks,
}
