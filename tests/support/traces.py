"""Traces of a small job, as PyTorch, Chakra and others write them, for tests."""

from __future__ import annotations

import json
import pickle
from typing import Any

from fabrictwin.interchange import chakra

KINETO_GROUP = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}


def kineto(rank: int = 0, world: int = 2) -> dict[str, Any]:
    """A kernel of 100 us, an all-reduce of 1,024 floats behind it, a kernel that was launched and waited."""
    call = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024, "Out msg nelems": 1024,
        "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    kernels = [("gemm", 7, 1000.0, 100.0, 1, {}), ("ncclDevKernel_AllReduce", 20, 1110.0, 50.0, 2, call)]
    kernels.append(("adam", 7, 1165.0, 30.0, 3, {}))
    events: list[dict[str, Any]] = []
    for name, stream, start, took, correlation, more in kernels:
        args = {"stream": stream, "device": 0, "correlation": correlation, **more}
        events.append({"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": took, "args": args})
        launch = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": 900.0 + correlation,
            "dur": 1,
        }
        events.append({**launch, "args": {"correlation": correlation}})
    info = {"backend": "nccl", "rank": rank, "world_size": world, "pg_config": [KINETO_GROUP]}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}


def execution_trace() -> dict[str, Any]:
    """A product, a broadcast that is waited for, and another product."""
    schema = {"name": "op_schema", "type": "string", "value": "aten::mm(Tensor self, Tensor mat2) -> Tensor"}

    def product(number: int) -> dict[str, Any]:
        values = [[1, 2, 0, 32, 4, "cuda:0"], [3, 4, 0, 64, 4, "cuda:0"]]
        inputs = {"values": values, "shapes": [[4, 8], [8, 8]], "types": ["Tensor(float)"] * 2}
        outputs = {"values": [[5, 6, 0, 32, 4, "cuda:0"]], "shapes": [[4, 8]], "types": ["Tensor(float)"]}
        return {
            "id": number,
            "name": "aten::mm",
            "ctrl_deps": 1,
            "inputs": inputs,
            "outputs": outputs,
            "attrs": [schema],
        }

    def call(number: int, values: list[Any], shapes: list[Any], types: list[str]) -> dict[str, Any]:
        inputs = {"values": values, "shapes": shapes, "types": types}
        none: dict[str, Any] = {"values": [], "shapes": [], "types": []}
        return {
            "id": number,
            "name": "record_param_comms",
            "ctrl_deps": 1,
            "inputs": inputs,
            "outputs": none,
            "attrs": [],
        }

    tensor = [[7, 8, 0, 53120, 4, "cuda:0"]]
    group = json.dumps([{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}])
    nodes = [
        {"id": 4, "name": "## process_group:init ##", "inputs": {"values": [group]}},
        product(10),
        call(12, [tensor, 33, ["0", "default_pg"], 0, "broadcast", [], [], 0, 1, 2],
             [[[53120]], [], [[], []], [], [], [], [], [], [], []], ["GenericList[Tensor(float)]"]),
        call(14, [33, ["", ""], 0, "wait", [], [], -1, -1, 1], [[]] * 9, ["Int"]),
        product(16),
    ]  # fmt: skip
    return {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": nodes}


def flight_recorder(rank: int) -> bytes:
    """An all-gather, and a send from rank 0 to rank 1 half a millisecond later."""
    entry = {
        "collective_seq_id": 1, "profiling_name": "nccl:_all_gather_base", "process_group": ("0", "default_pg"),
        "input_sizes": [[512]], "output_sizes": [[1024]], "input_dtypes": ["BFloat16"], "time_created_ns": 10**18,
    }  # fmt: skip
    what = "nccl:send 0->1" if rank == 0 else "nccl:recv 1<-0"
    later = {**entry, "profiling_name": what, "is_p2p": True, "time_created_ns": 10**18 + 500_000}
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return pickle.dumps({"version": "2.9", "rank": rank, "pg_config": groups, "entries": [entry, later]}, 2)


def chakra_trace(rank: int) -> bytes:
    """Compute of 5 us, an all-gather of 1 MiB a rank, and a message around the two."""
    gather = {"is_cpu_op": False, "comm_type": 2, "comm_size": 1 << 20}
    other = {"comm_size": 4096, "comm_tag": 3}
    kind, side = (chakra.SEND, "comm_dst") if rank == 0 else (chakra.RECEIVE, "comm_src")
    return chakra.written(
        [
            chakra.Node(0, "gemm", chakra.COMPUTE, duration_us=5, attributes={"is_cpu_op": False}),
            chakra.Node(1, "gather", chakra.COLLECTIVE, [0], attributes=gather),
            chakra.Node(2, "pass", kind, [1], attributes={**other, side: 1 - rank}),
        ]
    )


GOAL = """num_ranks 2
rank 0 {
l1: calc 1000 cpu 0
l2: send 10b to 1 tag 5 cpu 0 nic 0
l2 requires l1
}
rank 1 {
l1: recv 10b from 0 tag 5
l2: calc 300
l2 requires l1
}
"""

LAYERS = """HYBRID_DATA_MODEL model_parallel_NPU_group: 2
2
conv1 -1 10 NONE 0 12 NONE 0 8 ALLREDUCE 9408 1
fc -1 20 ALLGATHER 4096 30 NONE 0 40 ALLREDUCE 1024 2
"""
