"""Memory by address, limits of shared queues and completion queues, words for codes: tables by hand."""

from __future__ import annotations

import errno
import itertools
import random
import struct

import pytest
from support.verbs_ends import End, world

from fabrictwin.base.errors import ConfigError
from fabrictwin.verbs.abi.completion_codes import ibv_wc_status
from fabrictwin.verbs.adapter import qp_transitions
from fabrictwin.verbs.adapter.completions import WC
from fabrictwin.verbs.adapter.staging import Staging
from fabrictwin.verbs.adapter.transport import unreliable
from fabrictwin.verbs.attributes import code_words
from fabrictwin.verbs.gpu import GpuBuffer
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs import mem_alloc as m
from fabrictwin.verbs.pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from fabrictwin.verbs.pyverbs.cq import CQ, CQEX, CqInitAttrEx
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from fabrictwin.verbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from fabrictwin.verbs.pyverbs.wr import SGE, RecvWR
from fabrictwin.verbs.queue_pairs import basic_qp


@pytest.fixture
def end(twin) -> End:
    world(twin)
    return End(twin.fabric.host_names[0])


# --- memory --------------------------------------------------------------------------------------------------


def test_words_are_written_and_read_where_they_are_counted():
    at = m.posix_memalign(64, 32)
    assert at % 32 == 0
    assert m.read(at, 64) == bytes(64)
    m.writebe32(at, 0x01020304, 2)
    m.writebe64(at, 0x0102030405060708, 3)
    m.write(at, "abc", 2, 1)
    m.write(at, b"xy", 9, 60)
    assert (
        m.read(at, 64) == b"\0ab" + bytes(5) + b"\1\2\3\4" + bytes(12) + bytes(range(1, 9)) + bytes(28) + b"xy\0\0"
    )
    assert (m.read(at, 3, 8), m.read32(at, 2), m.read64(at, 3)) == (
        b"\1\2\3", struct.unpack("=I", b"\1\2\3\4")[0], struct.unpack("=Q", bytes(range(1, 9)))[0],
    )  # fmt: skip
    m.writebe32(at, 7)
    m.writebe64(at + 8, 9)
    assert m.read(at, 16) == b"\0\0\0\7" + bytes(4) + bytes(7) + b"\t"
    assert (m.read32(at + 3), m.read64(at + 15) & 0xFF) == (7, 9)
    m.free(at)


def test_memory_is_mapped_and_given_back():
    at = m.mmap(length=8192)
    m.write(at, b"q" * 8192, 8192)
    assert m.read(at, 1, 8191) == b"q"
    m.madvise(at, 8192)  # MADV_DONTNEED: zeroes from then on
    assert m.read(at, 8192) == bytes(8192)
    with pytest.raises(PyverbsError, match=r"Failed to madvise 10 bytes\. Errno: 22"):
        m.madvise(at + 1, 10)
    m.munmap(at, 8192)
    with pytest.raises(PyverbsError, match=r"Failed to munmap 0 bytes\. Errno: 22"):
        m.munmap(at, 0)
    for make in (lambda: m.mmap(length=0), lambda: m.malloc(1 << 62), lambda: m.posix_memalign(8, 3)):
        with pytest.raises(MemoryError, match="Failed to"):
            make()
    held = m.malloc(100)
    m.write(held, b"e", 1, 99)
    assert m.read(held, 1, 99) == b"e"
    m.free(held)
    assert (m.PROT_READ_, m.PROT_WRITE_, m.PROT_EXEC_, m.PROT_NONE_, m.MAP_HUGETLB_) == (1, 2, 4, 0, 0x40000)
    assert (m.MAP_SHARED_, m.MAP_PRIVATE_, m.MAP_ANONYMOUS_, m.MAP_PUBLIC_) == (1, 2, 32, 1)


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 0), (1, 5 + 100 + 8), (4, 5 + 100 + 32), (5, 10 + 100 + 40), (9, 15 + 100 + 72)]
)
def test_a_staged_copy_takes_software_a_piece_latency_and_its_bits(size, expected):
    assert Staging(latency_ps=100, rate_bps=10**12, piece_bytes=4, piece_ps=5).copy_ps(size) == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_header_sums_to_ones_with_its_checksum(seed):
    """RFC 1071: with the checksum in its place the ones' complement sum is all ones."""
    head = bytearray(random.Random(seed).randbytes(20))
    head[10:12] = b"\0\0"
    head[10:12] = unreliable._checksum(bytes(head)).to_bytes(2, "big")
    total = sum(struct.unpack("!10H", head))
    while total > 0xFFFF:
        total = total % 0x10000 + total // 0x10000
    assert total == 0xFFFF
    # the example of RFC 1071, section 3, two words more than its own
    assert unreliable._checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2


# --- shared receive queues -----------------------------------------------------------------------------------


def refused(make) -> int:
    with pytest.raises(PyverbsRDMAError) as error:
        make()
    return error.value.error_code


def test_a_shared_queue_has_sizes_and_a_limit(end):
    limits = end.ctx.query_device()
    most, wide = limits.max_srq_wr, limits.max_srq_sge
    for sizes in ((1, 1, 0), (most, wide, 0), (10, 1, 10)):
        made = SRQ(end.pd, SrqInitAttr(SrqAttr(*sizes)))
        found = made.query()
        assert (found.max_wr, found.max_sge, found.srq_limit) == sizes
        made.close()
        made.close()
    for sizes in ((0, 1, 0), (most + 1, 1, 0), (10, 0, 0), (10, wide + 1, 0), (10, 1, 11), (-1, 1, 0)):
        assert refused(lambda sizes=sizes: SRQ(end.pd, SrqInitAttr(SrqAttr(*sizes)))) == errno.EINVAL
    with pytest.raises(PyverbsRDMAError, match="Srq needs either Context or PD"):
        SRQ(end, SrqInitAttr())  # type: ignore[arg-type]
    plain = SrqInitAttr()
    assert (plain.max_wr, plain.max_sge, plain.srq_limit) == (100, 1, 0)


def test_a_shared_queue_changes_what_its_mask_names(end):
    """IBV_SRQ_MAX_WR is 1, IBV_SRQ_LIMIT 2; what is posted stays, and the limit is within the size."""
    most = end.ctx.query_device().max_srq_wr
    made = SRQ(end.pd, SrqInitAttr(SrqAttr(4, 2, 1)))
    piece = SGE(end.mr.buf, 8, end.mr.lkey)
    made.post_recv(RecvWR(1, 1, [piece], RecvWR(2, 2, [piece, piece])))
    assert refused(lambda: made.post_recv(RecvWR(3, 3, [piece] * 3))) == errno.EINVAL
    made.post_recv(RecvWR(3, 1, [piece]))
    made.post_recv(RecvWR(4, 1, [piece]))
    assert refused(lambda: made.post_recv(RecvWR(5, 1, [piece]))) == errno.ENOMEM
    for attr, mask, code in (
        (SrqAttr(3, 1, 1), 1, errno.EINVAL), (SrqAttr(most + 1, 1, 1), 1, errno.EINVAL),
        (SrqAttr(4, 1, 5), 2, errno.EINVAL), (SrqAttr(9, 1, 9), 4, errno.EINVAL),
        (SrqAttr(9, 1, 10), 3, errno.EINVAL),
    ):  # fmt: skip
        assert refused(lambda attr=attr, mask=mask: made.modify(attr, mask)) == code

    def now() -> tuple[int, int, int]:
        found = made.query()
        return found.max_wr, found.max_sge, found.srq_limit

    assert now() == (4, 2, 1)
    for attr, mask, expected in (
        (SrqAttr(9, 1, 7), 1, (9, 2, 1)), (SrqAttr(50, 1, 9), 2, (9, 2, 9)),
        (SrqAttr(most, 1, 0), 3, (most, 2, 0)),
        (SrqAttr(4, 1, 4), 3, (4, 2, 4)), (SrqAttr(99, 1, 0), 0, (4, 2, 4)),
    ):  # fmt: skip
        made.modify(attr, mask)
        assert now() == expected
    made.close()
    with pytest.raises(PyverbsUserError, match="The shared receive queue is closed"):
        made.query()


@pytest.mark.parametrize("kind", [None, e.IBV_SRQT_BASIC, e.IBV_SRQT_XRC, e.IBV_SRQT_TM, 7])
def test_a_shared_queue_of_a_context_is_basic_or_of_an_extended_domain(end, kind):
    attr = SrqInitAttrEx()
    if kind is not None:
        attr.comp_mask, attr.srq_type = e.IBV_SRQ_INIT_ATTR_TYPE, kind
    code = errno.EOPNOTSUPP if kind in (e.IBV_SRQT_TM, 7) else errno.EINVAL  # it names no domain
    assert refused(lambda: SRQ(end.ctx, attr)) == code
    attr.pd = end.pd
    if kind in (None, e.IBV_SRQT_BASIC):
        made = SRQ(end.ctx, attr)
        assert made.get_srq_num() == made.srq.number
        assert made.srq.completions is None
        assert end.ctx.adapter.shared_receives[made.srq.number] is made.srq
        number = made.srq.number
        made.close()
        assert number not in end.ctx.adapter.shared_receives
    else:
        assert refused(lambda: SRQ(end.ctx, attr)) == (
            errno.EINVAL if kind == e.IBV_SRQT_XRC else errno.EOPNOTSUPP
        )
        attr.cq = end.cq
        assert refused(lambda: SRQ(end.ctx, attr)) == (
            errno.EINVAL if kind == e.IBV_SRQT_XRC else errno.EOPNOTSUPP
        )


# --- completion queues ---------------------------------------------------------------------------------------


def test_a_completion_queue_has_a_size_and_a_vector(end):
    most, vectors = end.ctx.query_device().max_cqe, end.ctx.num_comp_vectors
    for cqe, vector, good in (
        (1, 0, True), (most, 0, True), (1, vectors - 1, True),
        (0, 0, False), (most + 1, 0, False), (-1, 0, False), (1, vectors, False), (1, -1, False),
    ):  # fmt: skip
        for make in (
            lambda cqe=cqe, vector=vector: CQ(end.ctx, cqe, comp_vector=vector),
            lambda cqe=cqe, vector=vector: CQEX(end.ctx, CqInitAttrEx(cqe=cqe, comp_vector=vector)),
        ):
            if good:
                made = make()
                assert made.num_events == 0
                assert made.context is end.ctx
                made.close()
                assert made.context is None
            else:
                assert refused(make) == errno.EINVAL


# --- words ---------------------------------------------------------------------------------------------------


def test_every_status_has_words_and_what_is_none_says_so():
    texts = [code_words.status_text(int(status)) for status in ibv_wc_status]
    assert len(set(texts)) == len(texts) == 24
    by_code = {0: "success", 1: "local length error", 2: "local QP operation error", 4: "local protection error",
               5: "work request flushed", 6: "memory window bind error", 9: "remote invalid request error",
               10: "remote access error", 11: "remote operation error", 12: "transport retries exceeded",
               13: "receiver-not-ready retries exceeded", 3: "IBV_WC_LOC_EEC_OP_ERR",
               99: "unknown status 99"}  # fmt: skip
    assert {code: code_words.status_text(code) for code in by_code} == by_code
    opcodes = (
        "Send.RDMA write.RDMA read.Compare and swap.Fetch and add.Bind memory window.Local invalidate.TSO.Flush"
    )
    words = dict(enumerate([*opcodes.split("."), "Atomic write"]))
    words |= {128: "Receive", 129: "Receive RDMA with immediate", 77: "unknown opcode 77"}
    assert {code: code_words.opcode_text(code) for code in words} == words


def test_flags_are_named_bit_by_bit():
    names = {1: "GRH ", 2: "With immediate ", 4: "IP checksum OK ", 8: "With invalidate "}
    for bits in itertools.product((0, 1), repeat=4):
        flags = sum(bit << at for at, bit in enumerate(bits))
        expected = "".join(name for at, name in names.items() if flags & at)
        assert code_words.flag_text(flags, code_words.WC_FLAGS) == expected
    assert code_words.lines([("a", 1), ("bc", None)], 4) == "a   : 1\nbc  : None\n"
    assert code_words.lines([("a", 1)]) == "a" + " " * 21 + ": 1\n"


def test_gpus_are_those_of_the_host(twin):
    world(twin)
    one = End(twin.fabric.host_names[0])
    for gpu in (-1, 64):
        with pytest.raises(ConfigError, match=f"got GPU {gpu}, expected one of the"):
            GpuBuffer(one.ctx, 8, gpu=gpu)


# --- addresses -----------------------------------------------------------------------------------------------

VECTOR = {
    "dlid": 3, "sl": 4, "src_path_bits": 5, "static_rate": 6, "port_num": 7, "flow_label": 8, "sgid_index": 9,
    "hop_limit": 10, "traffic_class": 11,
}  # fmt: skip


def test_an_address_goes_to_the_adapter_and_back_each_field_by_its_name():
    gid = GID("fe80:0000:0000:0000:0102:0304:0506:0708")
    route = GlobalRoute(
        gid, **{name: VECTOR[name] for name in ("flow_label", "sgid_index", "hop_limit", "traffic_class")}
    )
    local = {name: VECTOR[name] for name in ("dlid", "sl", "src_path_bits", "static_rate", "port_num")}
    vector = AHAttr(**local, is_global=1, gr=route).vector()
    assert {name: getattr(vector, name) for name in VECTOR} == VECTOR
    assert (vector.is_global, vector.dgid) == (True, gid.raw)
    back = AHAttr.of(vector)
    assert {name: getattr(back, name) for name in VECTOR} == VECTOR
    assert (back.is_global, back.dgid) == (1, str(gid))
    near = AHAttr(**local, gr=route)
    assert (near.dgid, near.vector().is_global, near.vector().flow_label) == (None, False, 0)
    plain = GlobalRoute()
    assert (plain.flow_label, plain.sgid_index, plain.hop_limit, plain.traffic_class) == (0, 0, 1, 0)


@pytest.mark.parametrize("version", [4, 6])
def test_the_way_back_of_a_datagram_is_its_header_turned_round(end, version):
    """40 bytes: a GRH has its source at 8 and its target at 24; IPv4's stand at 32 and 36."""
    adapter = end.ctx.adapter
    mine = adapter.gids[-1].raw
    head = bytearray(range(40))
    head[0] = version << 4 | 5
    other = bytes(head[8:24])
    head[24:40] = mine
    if version == 4 and adapter.ethernet:
        mapped = next(gid.raw for gid in adapter.gids if gid.raw.startswith(bytes(10) + b"\xff\xff"))
        head[32:36], head[36:40] = b"\x0a\x01\x02\x03", mapped[12:]
        other, mine = bytes(10) + b"\xff\xff\x0a\x01\x02\x03", mapped
    at = m.malloc(40)
    m.write(at, bytes(head), 40)
    wc = WC(slid=21, sl=2, wc_flags=1, dlid_path_bits=1)
    found = AH(end.pd, wc=wc, grh=at, port_num=1).vector
    assert (found.dlid, found.sl, found.src_path_bits, found.port_num, found.hop_limit) == (21, 2, 1, 1, 255)
    assert (found.is_global, found.dgid) == (True, other)
    assert adapter.gids[found.sgid_index].raw == mine
    m.free(at)
    for vector in (
        {"port_num": 2},
        {"is_global": 1, "sgid_index": len(adapter.gids)},
        {"is_global": 1, "sgid_index": -1},
    ):
        gr = GlobalRoute(sgid_index=vector.pop("sgid_index", 0))
        assert refused(lambda vector=vector, gr=gr: AH(end.pd, attr=AHAttr(**vector, gr=gr))) == errno.EINVAL


def test_closing_lets_go_of_what_was_held(end):
    context = end.ctx.context
    handle = end.pd.handle
    assert handle in end.ctx.opened.domains
    assert end.qp.scq is end.cq
    end.qp.close()
    assert (end.qp.scq, end.qp.rcq, end.qp.srq, end.qp.pd) == (None, None, None, None)
    end.mr.close()
    assert end.mr.buf == 0
    opened = end.ctx.opened
    end.pd.close()
    assert handle not in opened.domains
    assert end.pd.ctx is None
    assert context is end.ctx.context


# attributes of RTR and RTS by service (volume 1, table 96), as verbs.h numbers their bits
STEPS = {
    "UC": ((3, 4, 5), (7, 8, 12, 20), (16,)),
    "UD": ((4, 5, 6), (), (16,)), "RAW": ((5,), (), ()),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["UC", "UD", "RAW"])
def test_steps_of_services_take_their_attributes(kind):
    named = {"ACCESS_FLAGS": 3, "PKEY_INDEX": 4, "PORT": 5, "QKEY": 6, "AV": 7, "PATH_MTU": 8, "RQ_PSN": 12,
        "SQ_PSN": 16,
             "DEST_QPN": 20}  # fmt: skip
    assert {name: int(getattr(e, f"IBV_QP_{name}")) for name in named} == {
        name: 1 << bit for name, bit in named.items()
    }
    steps = basic_qp._STEPS[getattr(qp_transitions, kind)]
    assert steps == tuple(sum(1 << bit for bit in bits) for bits in STEPS[kind])
