"""Few bytes on NCCL's channels: which blocks, heads and shards get some, and what steps then cost, by release."""

from __future__ import annotations

from functools import cache

import pytest
from support.nccl_machines import chosen, twin_of

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.units import PS_PER_US
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.lowering.chunks import filling
from fabrictwin.nccl.lowering.lower import lower
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol
from fabrictwin.nccl.tuning.step_costs import calibration

A, P = Algorithm, Protocol
KIB = 1024


@cache
def eight(release: str) -> Communicator:
    return initialise(twin_of(), settings=read_settings({}, release=release), version=release)


def blocks_by_hand(size: int, channels: int, heads: int, chunk: int) -> tuple[int, int]:
    """NVLS's loop of 2.19 walked: how many blocks and heads get an element."""
    with_bytes = {
        (block, head)
        for start in range(0, size, channels * heads * chunk)
        for block in range(channels)
        for head in range(heads)
        if start + (block * heads + head) * chunk < size
    }
    return len({block for block, _ in with_bytes}), len({head for _, head in with_bytes})


@pytest.mark.parametrize("size", [4, 16 * KIB, 16 * KIB + 4, 100 * KIB, 128 * KIB, 132 * KIB, 1 << 20, 16 << 20])
def test_nvls_filled_one_block_after_another_until_2_20(size: int) -> None:
    def found(release: str) -> tuple[int, int]:
        task = Task("all_reduce", size)
        one = filling(eight(release), task, A.NVLS, P.SIMPLE, channels=16, heads=8, chunk=16 * KIB)
        return one.channels, one.heads

    assert found("2.19.4") == blocks_by_hand(size, 16, 8, 16 * KIB)
    assert found("2.20.5") == (16, 8)


def shards_by_hand(size: int, ranks: int, least: int) -> int:
    shard = -(-max(-(-size // ranks), 1) // least) * least
    return sum(1 for rank in range(ranks) if rank * shard < size)


@pytest.mark.parametrize("size", [4, 8, 16, 20, 32, 64, 100, 128, 256, 700, 800, 6144, 1 << 20])
@pytest.mark.parametrize(("release", "least"), [("2.19.4", 768), ("2.23.4", 16)])
def test_a_ring_waits_for_shards_with_bytes_alone(size: int, release: str, least: int) -> None:
    found = filling(eight(release), Task("all_reduce", size), A.RING, P.LL, channels=1, heads=1, chunk=16 * KIB)
    assert found.own == (shards_by_hand(size, 8, least) - 1) / 7
    simple = filling(
        eight(release), Task("all_reduce", size), A.RING, P.SIMPLE, channels=1, heads=1, chunk=1 << 20
    )
    assert simple.own == 1.0


@pytest.mark.parametrize("fidelity", ["analytic", "flow"])
def test_an_empty_ring_costs_its_wires_alone(fidelity: Fidelity) -> None:
    communicator = eight("2.23.4")
    way = chosen(A.RING, P.LL, 1)
    times = measure(
        communicator, [(Task("all_reduce", size), way) for size in (16, 64, 128)], fidelity=fidelity
    ).tolist()
    hop = calibration().of(communicator).inside.ring_hop[P.LL] * PS_PER_US
    # 14 steps, of which the shards of 16 bytes before the last keep it
    assert times[2] - times[0] == pytest.approx(14 * hop, rel=0.01)
    assert times[1] - times[0] == pytest.approx(14 * hop * 3 / 7, rel=0.01)


def test_nvls_of_2_19_moves_few_bytes_at_one_blocks_rate() -> None:
    def one(release: str, size: int) -> tuple[float, int]:
        found = lower(eight(release), Task("all_reduce", size), chosen(A.NVLS, channels=16))
        assert found.transport.connections is not None
        return float(found.transport.connections.limit.min()), found.costs.chunk_ps

    chunk = calibration().of(eight("2.19.4")).inside.nvls_chunk * PS_PER_US
    all_blocks, all_heads = one("2.20.5", 128 * KIB)
    assert one("2.19.4", 128 * KIB) == (pytest.approx(all_blocks / 16), all_heads)
    assert one("2.19.4", 256 * KIB) == (pytest.approx(all_blocks / 8), all_heads)
    assert one("2.19.4", 16 * KIB)[1] == pytest.approx(chunk, rel=1e-6)
    assert all_heads == pytest.approx(8 * chunk, rel=1e-6)
