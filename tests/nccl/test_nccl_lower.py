"""NCCL tasks lowered: real data against numpy, single sends against edges, what cannot be refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.nccl_machines import chosen, communicator, twin_of

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.units import PS_PER_US
from fabrictwin.engines.channels.channel_resources import message_bytes
from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.lowering.chunks import chunk_bytes
from fabrictwin.nccl.lowering.lower import lower
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.tasks import KINDS, Task
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol
from fabrictwin.nccl.tuning.step_costs import calibration
from fabrictwin.program import patterns
from fabrictwin.program.data_execution import execute
from fabrictwin.program.reductions import from_bfloat16, to_bfloat16
from fabrictwin.program.sends import scratch, sends_of

A, P = Algorithm, Protocol


def expected(kind: str, data: np.ndarray, total: np.ndarray, root: int) -> np.ndarray:
    """Return every rank's buffer; parts that a rank gets nothing in stay as they were."""
    n, elements = data.shape
    shards = np.array_split(np.arange(elements), n)
    result = data.copy()
    block = elements // n
    match kind:
        case "all_reduce":
            result[:] = total
        case "reduce":
            result[root] = total
        case "broadcast":
            result[:] = data[root]
        case "all_gather":
            result[:] = np.concatenate([data[r, shard] for r, shard in enumerate(shards)])
        case "reduce_scatter":
            for r, shard in enumerate(shards):
                result[r, shard] = total[shard]
        case "all_to_all":
            result[:] = data.reshape(n, n, block).transpose(1, 0, 2).reshape(n, -1)
        case "send_recv":
            result[:] = np.roll(data, 1, axis=0)
        case "gather":
            result[root] = np.concatenate([data[r, shard] for r, shard in enumerate(shards)])
        case "scatter":
            for r, shard in enumerate(shards):
                result[r, shard] = data[root, shard]
    return result


def known(kind: str, n: int, elements: int, root: int) -> np.ndarray:
    """[n, elements] where the outcome is defined: a reduce or reduce-scatter leaves partial sums elsewhere."""
    shards = np.array_split(np.arange(elements), n)
    mask = np.ones((n, elements), bool)
    if kind == "reduce_scatter":
        mask[:] = False
        for r, shard in enumerate(shards):
            mask[r, shard] = True
    if kind == "reduce":
        mask[:] = False
        mask[root] = True
    return mask


WAYS = [
    *((kind, A.RING, (2, 4)) for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")),
    *((kind, A.RING, (1, 8)) for kind in KINDS),
    *((kind, A.RING, (3, 3)) for kind in KINDS),
    ("all_reduce", A.TREE, (1, 8)),
    ("all_reduce", A.TREE, (3, 4)),
    *((kind, A.NVLS, (1, 8)) for kind in ("all_reduce", "all_gather", "reduce_scatter")),
    ("all_reduce", A.NVLS, (3, 4)),
    ("all_reduce", A.NVLS_TREE, (2, 4)),
    ("all_reduce", A.NVLS_TREE, (5, 3)),
    ("all_reduce", A.COLLNET_DIRECT, (2, 4)),
    ("all_reduce", A.COLLNET_CHAIN, (3, 4)),
    *((kind, A.PAT, (hosts, 1)) for kind in ("all_gather", "reduce_scatter") for hosts in (2, 5, 8)),
]


@pytest.mark.parametrize(("kind", "algorithm", "shape"), WAYS)
@pytest.mark.parametrize("protocol", P)
def test_real_data(kind: str, algorithm: Algorithm, shape: tuple[int, int], protocol: Protocol) -> None:
    if protocol != P.SIMPLE and algorithm not in (A.RING, A.TREE):
        return
    comm = communicator(hosts=shape[0], gpus=shape[1])
    n = comm.ranks
    elements = n * 7 if kind in ("all_to_all", "gather", "scatter") else n * 7 + 3
    data = np.random.default_rng(n).integers(0, 9, (n, elements)).astype(np.int32)
    root = n // 2
    communication = lower(comm, Task(kind, elements * 4, root=root), chosen(algorithm, protocol))
    result = execute([communication], data, seed=7)
    want, mask = expected(kind, data, data.sum(axis=0, dtype=np.int32), root), known(kind, n, elements, root)
    np.testing.assert_array_equal(result[mask], want[mask])


@pytest.mark.parametrize("operation", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("number", ["float32", "float16", "bf16", "int32", "int8", "uint64"])
@pytest.mark.parametrize(("kind", "algorithm"), [("all_reduce", A.RING), ("all_reduce", A.NVLS), ("reduce",
A.RING),
                                                 ("reduce_scatter", A.RING), ("all_reduce", A.TREE)])  # fmt: skip
def test_operations_and_types(operation: str, number: str, kind: str, algorithm: Algorithm) -> None:
    comm = communicator(gpus=4)
    n, elements = 4, 22
    whole = np.random.default_rng(3).integers(1, 4, (n, elements))
    exact = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add}[
        operation
    ].reduce(whole, axis=0)
    if operation == "avg":
        exact = exact / n if number in ("float32", "float16", "bf16") else exact // n
    data = to_bfloat16(whole.astype(np.float32)) if number == "bf16" else whole.astype(number)
    size = elements * data.itemsize
    task = Task(kind, size, element_bytes=data.itemsize, root=1)
    result = execute(
        [lower(comm, task, chosen(algorithm))],
        data,
        seed=1,
        operation=operation,
        number="bf16" if number == "bf16" else "",
    )
    found = from_bfloat16(result) if number == "bf16" else result
    # small whole numbers and quarters: exact in every type and order
    want = expected(kind, found, exact.astype(found.dtype), 1)
    mask = known(kind, n, elements, 1)
    np.testing.assert_array_equal(found[mask], want[mask])


def test_bfloat16_rounds_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, np.inf, np.nan, 3.3895314e38], np.float32)
    rounded = from_bfloat16(to_bfloat16(values))
    np.testing.assert_array_equal(rounded[:5], np.array([1.0, 1.0, 1.015625, -2.5, np.inf], np.float32))
    assert np.isnan(rounded[5])
    assert rounded[6] == np.float32(3.3895314e38)


@pytest.mark.parametrize(("kind", "algorithm", "shape"), WAYS)
def test_sends_add_up_to_edges(kind: str, algorithm: Algorithm, shape: tuple[int, int]) -> None:
    comm = communicator(hosts=shape[0], gpus=shape[1])
    elements = comm.ranks * 40
    channels = lower(comm, Task(kind, elements * 4), chosen(algorithm)).channels
    edges = patterns.edges(channels)
    for c in range(len(channels)):
        sends = sends_of(channels, c)
        mine = edges.channel == c
        place = lambda row, seat, rank: np.where(seat == 0, rank, scratch(row))  # noqa: E731
        source = place(edges.source_row, edges.source_seat, edges.source)[mine]
        target = place(edges.target_row, edges.target_seat, edges.target)[mine]
        want: dict[tuple[int, int], int] = {}
        for a, b, size in zip(source.tolist(), target.tolist(), edges.size_bytes[mine].tolist(), strict=True):
            want[a, b] = want.get((a, b), 0) + size
        got: dict[tuple[int, int], int] = {}
        for a, b, size in zip(
            sends.source.tolist(), sends.target.tolist(), sends.length_bytes.tolist(), strict=True
        ):
            got[a, b] = got.get((a, b), 0) + size
        assert got == {pair: size for pair, size in want.items() if size}


def test_what_cannot_be_says_so() -> None:
    comm = communicator(gpus=4)
    with pytest.raises(ConfigError, match="did you mean 'all_reduce'"):
        Task("all_redcue", 8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no part"):
        Task("all_reduce", 6)
    with pytest.raises(ConfigError, match="expected a rank from 0 to 3"):
        lower(comm, Task("broadcast", 8, root=4), chosen(A.RING))
    with pytest.raises(ConfigError, match="multiple of 4 blocks"):
        lower(comm, Task("all_to_all", 8))
    with pytest.raises(ConfigError, match="NVLS tree on one host"):
        lower(comm, Task("all_reduce", 8), chosen(A.NVLS_TREE))
    with pytest.raises(ConfigError, match="expected Simple"):
        lower(comm, Task("all_reduce", 8), chosen(A.NVLS, P.LL))
    with pytest.raises(ConfigError, match="with one"):
        lower(comm, Task("all_gather", 64), chosen(A.PAT))


@pytest.mark.parametrize(
    ("release", "size", "chunk"),
    [
        # depth 8 on two hosts of eight, eight channels: the largest of 1 MiB, 512 KiB, ... with enough of them
        ("2.18.5", 1 << 20, 32 << 10),
        ("2.19.3", 16 << 20, 64 << 10),
        ("2.18.5", 32 << 20, 128 << 10),
        ("2.18.5", 256 << 20, 512 << 10),
        ("2.20.3", 16 << 20, 1 << 20),
    ],
)
def test_trees_with_simple_shrank_their_chunks_before_2_20(release: str, size: int, chunk: int) -> None:
    """NCCL 2.19.4, src/enqueue.cc, computeColl, with a depth of ranks a host less one and log2 of hosts."""
    settings = read_settings({}, release=release)
    found = initialise(twin_of("p4de-24xlarge", 2, "ethernet"), settings=settings)
    task = Task("all_reduce", size, 4)
    assert chunk_bytes(found, task, Algorithm.TREE, Protocol.SIMPLE, 8) == chunk


@pytest.mark.parametrize("fidelity", ["analytic", "flow", "packet"])
def test_messages_of_a_connection_follow_each_other_as_its_proxy_hands_them_on(fidelity: Fidelity) -> None:
    """A ring over two hosts: n messages take n - 1 periods, whatever the wire gives."""
    own = initialise(twin_of("p4de-24xlarge", 2, "ethernet"), settings=read_settings({}))
    costs = calibration().of(own)
    task = Task("all_reduce", (64 if fidelity == "packet" else 256) << 20, 4)
    choice = chosen(A.RING)

    def time_us(message: float) -> float:
        changed = replace(costs, between=replace(costs.between, message=message))
        (found,) = measure(own, [(task, choice)], fidelity=fidelity, costs=changed)
        return float(found) / PS_PER_US

    channels = lower(own, task, choice).channels
    edge = patterns.edges(channels).size_bytes.max()
    messages = -(-int(edge) // int(message_bytes(channels).min()))
    assert time_us(5000.0) >= (messages - 1) * 5000.0
    assert time_us(5000.0) == pytest.approx((messages - 1) * 5000.0, rel=0.15)
    assert time_us(0.0) < time_us(5000.0) / 4
