"""Memory regions: addresses, rights, buffers, and a device that another context imports."""

from __future__ import annotations

import errno
import os

import pytest
from support import verbs_ends
from support.clusters import boxes
from support.verbs_ends import (
    ALL,
    End,
    world,
)

from fabrictwin.verbs.pyverbs.device import Context
from fabrictwin.verbs.pyverbs.mr import MR, MREx
from fabrictwin.verbs.pyverbs.pd import PD
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError


def test_an_opened_device_is_imported_with_its_domains_and_regions():
    world(boxes(2))
    end = End("host-0")
    fd = end.ctx.cmd_fd
    assert end.ctx.cmd_fd == fd
    again = Context(cmd_fd=os.dup(fd))
    assert again.context is end.ctx.context
    domain = PD(again, handle=end.pd.handle)
    region = MR(domain, handle=end.mr.handle)
    assert (domain.pd, region.region, region.lkey) == (end.pd.pd, end.mr.region, end.mr.lkey)
    assert domain.handle == end.pd.handle
    for wrong in (
        lambda: PD(again, handle=99),
        lambda: MR(domain, handle=9999),
        lambda: MR(PD(again), handle=end.mr.handle),
    ):
        with pytest.raises(PyverbsRDMAError) as error:
            wrong()
        assert error.value.error_code == errno.EINVAL
    region.unimport()
    region.close()
    domain.unimport()
    domain.close()
    again.close()
    assert end.mr.region is not None
    assert end.mr.lkey in end.ctx.adapter.memory.local
    assert end.pd.handle in end.ctx.context.domains
    end.pd.close()
    assert end.ctx.context.domains == {}
    with pytest.raises(PyverbsRDMAError), open("/dev/null") as null:
        Context(cmd_fd=null.fileno())
    with pytest.raises(PyverbsUserError):
        Context()
    with pytest.raises(PyverbsRDMAError):
        Context(name="mlx5_9")
    with pytest.raises(PyverbsUserError):
        PD(end.pd)


def test_memory_by_address():
    from fabrictwin.verbs.pyverbs import mem_alloc as m

    at = m.mmap(length=8192)
    assert at % 4096 == 0
    m.write(at, b"abcdef", 4, 2)
    assert m.read(at, 7, 1) == b"\0abcd\0\0"
    m.write(at, "xyz", 9, 64)
    assert m.read(at, 4, 64) == b"xyz\0"
    m.writebe32(at, 0x01020304, 3)
    assert m.read(at, 4, 12) == bytes([1, 2, 3, 4])
    assert m.read32(at, 3) == 0x04030201
    m.writebe64(at, 5, 4)
    assert m.read(at, 8, 32) == bytes(7) + b"\5"
    assert m.read64(at, 4) == 5 << 56
    m.madvise(at, 4096)
    assert m.read(at, 8) == bytes(8)
    with pytest.raises(PyverbsError):
        m.madvise(at + 1, 64)
    m.munmap(at, 8192)
    with pytest.raises(PyverbsError):
        m.munmap(at + 1, 64)
    with pytest.raises(MemoryError):
        m.mmap(length=0)
    block = m.posix_memalign(100, 256)
    assert (block % 256, m.read(block, 100)) == (0, bytes(100))
    m.free(block)
    with pytest.raises(MemoryError, match="EINVAL"):
        m.posix_memalign(8, 3)
    block = m.malloc(16)
    m.write(block, b"x" * 16, 16)
    m.free(block)
    assert (m.PROT_NONE_, m.MAP_PUBLIC_, m.MAP_HUGETLB_) == (0, 1, 0x40000)


@pytest.mark.parametrize("size", [64, (1 << 20) - 1, 1 << 20, 3 << 20])
def test_buffers_of_regions_begin_with_nothing(size):
    world(boxes(2))
    end = End("host-0")
    region = MR(end.pd, size, ALL)
    assert (region.buf % 4096, region.length, region.read(8, size - 8)) == (0, size, bytes(8))
    region.write(b"end", 3, size - 3)
    assert region.read(3, size - 3) == b"end"
    region.close()
    assert (region.buf, region.region) == (0, None)
    for wrong in (lambda: end.mr.write(b"x", 1, -1), lambda: end.mr.write(b"x", -1), lambda: end.mr.read(1, -1),
                  lambda: end.mr.read(-1, 0)):  # fmt: skip
        with pytest.raises(PyverbsUserError):
            wrong()
    end.mr.write("text", 9)
    assert end.mr.read(5, 0) == b"text\0"


@pytest.mark.parametrize(
    ("access", "code"),
    [(1, 0), (0x3BF & ~64 | 1 << 20, 0), (64, errno.EOPNOTSUPP), (2, errno.EINVAL), (8, errno.EINVAL),
     (1 << 10 | 1, errno.EINVAL), (4, 0), (16, 0), (32, 0), (0x80, 0), (0x100, 0), (0x200, 0)],
)  # fmt: skip
def test_rights_that_can_be_registered(access, code):
    from fabrictwin.verbs.pyverbs.mr import check_access

    assert check_access(access) == code


def test_regions_that_are_not_offered():
    world(boxes(2))
    end = End("host-0")
    for more, code in (
        ({"implicit": True}, errno.EOPNOTSUPP),
        ({"fd": 3}, errno.EOPNOTSUPP),
        ({"fd": 3, "implicit": True}, errno.EINVAL),
        ({"fd": 3, "address": 4096}, errno.EINVAL),
        ({"dmah": 1}, errno.EOPNOTSUPP),
        ({"buf": 1}, errno.EOPNOTSUPP),
    ):
        with pytest.raises(PyverbsRDMAError) as error:
            MREx(end.pd, 64, ALL, **more)
        assert error.value.error_code == code
    with pytest.raises(PyverbsUserError):
        MR(end.pd, 3, ALL, address=b"abc")


assert verbs_ends.ENGINE == "analytic"  # these tests say what happens, not when


def test_a_device_that_was_imported_twice_goes_with_the_last_of_them():
    world(boxes(2))
    first = End("host-0")
    fd = os.dup(first.ctx.cmd_fd)
    second = Context(cmd_fd=os.dup(fd))
    assert first.ctx.context.users == 2
    first.ctx.close()
    third = Context(cmd_fd=os.dup(fd))
    assert third.context is second.context
    assert third.context.users == 2
    second.close()
    third.close()
    with pytest.raises(PyverbsRDMAError, match="import"):
        Context(cmd_fd=fd)
    os.close(fd)
