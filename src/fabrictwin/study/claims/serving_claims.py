"""Tensor parallelism with and without RDMA between hosts: a training step, and a step of decoding.

A step of decoding makes one token for each sequence of a batch. Per layer every GPU reads its part of the weights
and of the cache of keys and values (`workload.layers.roofline`), and two all-reduces of batch × hidden values join the
parts; nothing overlaps. NCCL's tuner chooses how they go, the flow engine times them. Sampling, scheduling and the
first tokens of a sequence are left out.
"""

from __future__ import annotations

from fabrictwin import catalog
from fabrictwin.base.arrays import I32
from fabrictwin.base.units import format_time
from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.tuning.tuner import Call, tuner
from fabrictwin.runs.execute import predict
from fabrictwin.study.claims.claim import Claim, Judgement
from fabrictwin.study.claims.claim_settings import NETWORKS, spec, twin
from fabrictwin.study.compare.without_rdma import WITHOUT_RDMA, over_sockets
from fabrictwin.workload.layers.roofline import Roofline
from fabrictwin.workload.model.model_sizes import Model

VALUE_BYTES = 2  # bf16
HOST = "dgx-h100"


# as its public configuration has it
MODEL = Model(
    "Llama 3 70B", "llama", hidden=8192, layers=80, heads=64, kv_heads=8, head_size=128, ffn=28672, vocab=128_256,
    positions=0, tied=False
)  # fmt: skip
BATCH, CONTEXT = 32, 4096


def _reads(tp: int) -> tuple[int, ...]:
    """Bytes that each kernel of a layer reads on one of `tp` GPUs: projections, cache, output, MLP up, down."""
    hidden, head = MODEL.hidden, MODEL.head_size
    kv = max(1, MODEL.kv_heads // tp)  # more GPUs than heads: each has a head of its own, some the same
    cache = 2 * kv * head * CONTEXT * BATCH
    query = hidden * (hidden // tp + 2 * kv * head)
    parts = (query, cache, hidden * hidden // tp, 2 * hidden * MODEL.ffn // tp, hidden * MODEL.ffn // tp)
    return tuple(VALUE_BYTES * part for part in parts)


def decode_ps(tp: int, network: str, *, sockets: bool = False) -> tuple[int, int]:
    """(a step of decoding, what of it is all-reduces)."""
    where = twin(spec(-(-tp // catalog.host(HOST).nodes.gpu), host=HOST, network=network))
    ranks: I32 = where.fabric.gpu_node[:tp]
    communicator = initialise(where, ranks, settings=read_settings(WITHOUT_RDMA if sockets else {}))
    size = BATCH * MODEL.hidden * VALUE_BYTES
    call = Call("AllReduce", size)
    asked = [(Task("all_reduce", size), tuner(communicator).choose(call))]
    talk = 2 * int(measure(communicator, asked)[0])
    roof = Roofline(catalog.host(HOST).gpu, "bf16")
    read = sum(round(roof.stream(part).ps) for part in _reads(tp))
    return MODEL.layers * (read + talk), MODEL.layers * talk


def _rate(network: str) -> str:
    return str(NETWORKS[network]["link_rate"])


def without_rdma() -> Claim:
    gpus = catalog.host(HOST).nodes.gpu
    micro_batches = 2

    def job(tp: int) -> dict[str, object]:
        return {"parallel": {"tp": tp, "dp": 1}, "micro_batches": micro_batches, "precision": "bf16"}

    trained = {
        "one host": predict(spec(1, training=job(gpus))).trace.end_ps,
        "two hosts, RDMA": predict(spec(2, training=job(2 * gpus))).trace.end_ps,
        "two hosts, TCP": predict(
            spec(2, network="ethernet", training=job(2 * gpus)), alter=over_sockets
        ).trace.end_ps,
    }
    decoded = {
        "one host": decode_ps(gpus, "ethernet"),
        "two hosts, RDMA": decode_ps(2 * gpus, "ethernet"),
        "two hosts, TCP": decode_ps(2 * gpus, "ethernet", sockets=True),
    }
    figures = []
    for where, ps in trained.items():
        figures.append((f"training, {where}", f"{format_time(ps)}, {trained['one host'] / ps:.2f} times as fast"))
    for where, (ps, talk) in decoded.items():
        gain = decoded["one host"][0] / ps
        figures.append(
            (f"decoding, {where}", f"{format_time(ps)}, {gain:.2f} times as fast; {talk / ps:.0%} talk")
        )
    trains = trained["one host"] / trained["two hosts, RDMA"]
    decodes = decoded["one host"][0] / decoded["two hosts, RDMA"][0]
    loses = (
        trained["two hosts, TCP"] > trained["one host"] and decoded["two hosts, TCP"][0] > decoded["one host"][0]
    )
    gains = trains > 1 and decodes > 1
    verdict = "A second host pays with RDMA" if gains else "Even with RDMA not both gain from a second host"
    return Claim(
        key="without-rdma",
        statement="Without RDMA between nodes, tensor-parallel inference and training across nodes lose what "
        "distribution gains.",
        experiment=f"Tensor-parallel over {gpus} H100 of one host, over {2 * gpus} of two with RDMA and with TCP, both at "
        f"{_rate('ethernet')}: a training step of a 7 B model, and a step of decoding of a 70 B model for a batch "
        f"of {BATCH} sequences of {CONTEXT:,} tokens.",
        figures=tuple(figures),
        judgement=Judgement.WRONG if not loses else Judgement.HOLDS if gains else Judgement.CONDITIONS,
        why=f"Every layer waits for its all-reduces. {verdict}: {trains:.2f} times as fast in training, "
        f"{decodes:.2f} in decoding, whose all-reduces are small, so that latency is most of them.",
    )
