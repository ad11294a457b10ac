"""Regions over memory that programs have, in place; memory of a GPU; one gibibyte at once."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from support import verbs_ends
from support.clusters import dgx
from support.verbs_ends import ALL, End, connect, pair, world

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.faults import HostCause
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.fabric import LinkKind
from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.gpu import NO_PEER_MEMORY, GpuBuffer
from fabrictwin.verbs.pyverbs.enums import (  # type: ignore[attr-defined]
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
)
from fabrictwin.verbs.pyverbs.mr import MR
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError


@pytest.fixture
def ends():
    return pair(dgx(), size=1 << 20)


@pytest.mark.parametrize(
    "make",
    [lambda: bytearray(4096), lambda: mmap.mmap(-1, 4096), lambda: np.zeros(4096, np.uint8)],
    ids=["bytearray", "mmap", "numpy"],
)
def test_a_buffer_is_used_in_place(ends, make):
    one, other = ends
    buffer = make()
    other.mr = MR(other.pd, 4096, ALL, address=buffer)
    one.mr.write(b"in place", 8)
    one.send(IBV_WR_RDMA_WRITE, length=8, remote=other, at=100)
    assert one.statuses() == [IBV_WC_SUCCESS]
    assert bytes(memoryview(buffer)[100:108]) == b"in place"


def test_a_plain_address_is_used_in_place(ends):
    one, other = ends
    array = np.arange(512, dtype=np.int64)
    other.mr = MR(other.pd, array.nbytes, ALL, address=array.ctypes.data)
    one.send(IBV_WR_ATOMIC_CMP_AND_SWP, length=8, remote=other, at=8 * 7, operands=(7, 700))
    one.send(IBV_WR_ATOMIC_CMP_AND_SWP, length=8, offset=8, remote=other, at=8 * 7, operands=(7, 1))
    assert one.statuses(2) == [IBV_WC_SUCCESS] * 2
    assert array[7] == 700
    assert np.frombuffer(one.mr.read(16, 0), np.int64).tolist() == [7, 700]


def test_a_gpu_s_memory_holds_the_bytes_and_costs_its_own_way(ends):
    one, other = ends
    taken = {}
    for gpu in (None, 0, 7):
        world(dgx())
        one, other = End("host-0", size=1 << 20), End("host-1", size=1 << 20)
        connect(one, other, qp_access_flags=ALL)
        if gpu is not None:
            buffer = GpuBuffer(other.ctx, 1 << 20, gpu=gpu)
            other.mr = MR(other.pd, 1 << 20, ALL, address=buffer)
        one.mr.write(b"x" * 100, 100)
        one.send(IBV_WR_RDMA_WRITE, length=1 << 20, remote=other)
        assert one.statuses() == [IBV_WC_SUCCESS]
        taken[gpu] = place.world().now_ps
        if gpu is not None:
            assert bytes(buffer.array[:101]) == b"x" * 100 + b"\0"
    # the GPU beside the adapter is nearer than the one behind the other socket
    assert taken[0] < taken[7]


@pytest.mark.parametrize("engine", ["analytic", "flow", "packet"])
def test_a_gpu_that_the_adapter_does_not_reach_is_staged_in_host_memory(engine, monkeypatch):
    """A copy at either end, each the software's time and the bytes at the rate of the GPU's link."""
    monkeypatch.setattr(verbs_ends, "ENGINE", engine)
    size, taken = 1 << 20, {}
    for where in ("host", "target", "source", "both", "read"):
        world(dgx())
        one, other = End("host-0", size=size), End("host-1", size=size)
        connect(one, other, qp_access_flags=ALL)
        buffers = {}
        for end, sides in ((one, ("source", "both")), (other, ("target", "both", "read"))):
            if where in sides:
                buffers[end] = GpuBuffer(end.ctx, size, gpudirect=False)
                end.mr = MR(end.pd, size, ALL, address=buffers[end])
        source, target = (other, one) if where == "read" else (one, other)
        source.mr.write(b"staged" * 10, 60)
        one.send(IBV_WR_RDMA_READ if where == "read" else IBV_WR_RDMA_WRITE, length=size, remote=other)
        one.send(IBV_WR_RDMA_WRITE, length=8, remote=other, at=size - 8)  # what is behind it does not pass
        assert one.statuses(2) == [IBV_WC_SUCCESS] * 2
        assert target.mr.read(60, 0) == b"staged" * 10
        taken[where] = place.world().now_ps
    memory = PacketOptions().hosts
    fabric = dgx().fabric
    rate = int(fabric.port_payload_bps[fabric.port_kind == LinkKind.PCIE].max())
    copy = size // memory.staging_chunk_bytes * memory.staging_ps + size * 8e12 / rate
    behind = memory.staging_ps  # what is behind is copied out after it, and copied in while it is under way
    for where, wanted in (("target", copy + behind), ("source", copy), ("both", 2 * copy + behind)):
        # an acknowledgement comes while it is copied
        assert taken[where] - taken["host"] == pytest.approx(wanted, rel=0.05)
    assert taken["read"] > taken["host"] + 0.9 * copy


def test_staging_is_what_a_host_without_the_module_does():
    twin = dgx()
    twin.host_causes[1] = (HostCause(NO_PEER_MEMORY),)
    try:
        world(twin)
        one, other = End("host-0"), End("host-1")
        assert GpuBuffer(one.ctx, 64).gpudirect
        assert not GpuBuffer(other.ctx, 64).gpudirect
        with pytest.raises(PyverbsRDMAError, match="no-gpudirect-module"):
            GpuBuffer(other.ctx, 64, gpudirect=True)
    finally:
        twin.host_causes.clear()


def test_a_gpu_that_is_not_there(ends):
    with pytest.raises(ConfigError, match="expected one of the 8"):
        GpuBuffer(ends[0].ctx, 64, gpu=8)


@pytest.mark.second
@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ])
def test_one_gibibyte_moves(opcode):
    one, other = pair(dgx(), size=1 << 20)
    size = 1 << 30
    one.mr, other.mr = (MR(end.pd, size, ALL) for end in (one, other))
    source, target = (one, other) if opcode == IBV_WR_RDMA_WRITE else (other, one)
    source.mr.write(b"first", 5)
    source.mr.write(b"last", 4, size - 4)
    one.send(opcode, length=size, remote=other)
    assert one.statuses() == [IBV_WC_SUCCESS]
    assert (target.mr.read(5, 0), target.mr.read(4, size - 4)) == (b"first", b"last")
