"""Datagrams: their headers, the address of the way back, address vectors."""

from __future__ import annotations

import errno
import struct
from types import SimpleNamespace

import pytest
from support.clusters import boxes
from support.verbs_ends import (
    QKEY,
    SIGNALED,
    End,
    both,
    pair,
    world,
)

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.addr import AH, GID, GRH, AHAttr, GlobalRoute
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from fabrictwin.verbs.pyverbs.wr import SendWR


def test_a_datagram_says_who_sent_it(twin):
    one, other = pair(twin, kind=e.IBV_QPT_UD)
    one.mr.write(b"datagram", 8)
    other.receive(1)
    one.send(e.IBV_WR_SEND_WITH_IMM, imm=7, length=8, to=other)
    _, wc = both(one, other)
    assert (wc.src_qp, wc.slid, wc.sl) == (one.qp.qp_num, one.ctx.adapter.lid, 0)
    assert (wc.byte_len, wc.imm_data, wc.opcode, wc.pkey_index) == (48, 7, 128, 0)
    assert wc.wc_flags == 2 | int(one.ctx.adapter.ethernet)
    assert other.mr.read(8, 40) == b"datagram"


def test_an_ipv4_header_stands_before_a_datagram():
    """RFC 791: the header, 20 bytes before the datagram, sums up to all ones."""
    one, other = pair(boxes(8, "ethernet"), kind=e.IBV_QPT_UD)
    far, near = other.ctx.adapter, one.ctx.adapter
    index = near.gid_index(e.IBV_GID_TYPE_ROCE_V2)
    route = GlobalRoute(GID.of(far.gids[index].raw), sgid_index=index, hop_limit=17, traffic_class=0x68)
    request = SendWR(1, e.IBV_WR_SEND, 1, 0, [one.sge(0, 100)], SIGNALED)
    request.set_wr_ud(AH(one.pd, attr=AHAttr(gr=route, is_global=1)), other.qp.qp_num, QKEY)
    other.mr.write(b"\xee" * 40, 40)
    other.receive(1)
    one.qp.post_send(request)
    place.world().settle()
    header = other.mr.read(40, 0)
    assert header[:20] == bytes(20)
    words = struct.unpack("!10H", header[20:])
    total = sum(words)
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    version, service, length, _, fragment, hops, protocol = struct.unpack("!BBHHHBB", header[20:30])
    assert (version, service, hops, protocol, fragment) == (0x45, 0x68, 17, 17, 0x4000)
    assert length == 20 + 8 + 12 + 8 + 100 + 4
    assert header[32:36] == near.ipv4
    assert header[36:40] == far.ipv4
    assert near.ipv4 != far.ipv4
    wc = other.cq.poll()[1][0]
    back = AH(other.pd, wc=wc, grh=other.mr.buf, port_num=1)
    assert back.vector.dgid == near.gids[index].raw
    assert (back.vector.is_global, back.vector.hop_limit) == (True, 255)
    assert far.gids[back.vector.sgid_index].raw == far.gids[index].raw


def test_the_way_back_of_a_datagram_over_infiniband():
    one, other = pair(boxes(8, "infiniband"), kind=e.IBV_QPT_UD)
    wc = SimpleNamespace(slid=5, sl=3, dlid_path_bits=2, wc_flags=1)
    mine, theirs = (GID.of(end.ctx.adapter.gids[0].raw) for end in (other, one))
    back = AH(other.pd, wc=wc, grh=GRH(sgid=theirs, dgid=mine), port_num=1).vector
    assert (back.dlid, back.sl, back.src_path_bits, back.sgid_index) == (5, 3, 2, 0)
    assert (back.dgid, back.is_global) == (theirs.raw, True)
    other.mr.write(bytes([0x60]) + bytes(7) + theirs.raw + mine.raw, 40)
    assert AH(other.pd, wc=wc, grh=other.mr.buf, port_num=1).vector == back
    wc.wc_flags = 0
    assert not AH(other.pd, wc=wc, grh=other.mr.buf, port_num=1).vector.is_global
    with pytest.raises(PyverbsRDMAError):
        AH(other.pd, wc=wc, grh=other.mr.buf, port_num=2)


@pytest.mark.parametrize(
    ("index", "port", "good"), [(0, 1, True), (3, 1, True), (4, 1, False), (-1, 1, False), (0, 2, False)]
)
def test_addresses_name_an_entry_of_the_table(index, port, good):
    world(boxes(8, "ethernet"))
    end = End("host-0")
    attr = AHAttr(gr=GlobalRoute(GID(), sgid_index=index), is_global=1, port_num=port)
    if good:
        assert AH(end.pd, attr=attr).vector.sgid_index == index
    else:
        with pytest.raises(PyverbsRDMAError) as error:
            AH(end.pd, attr=attr)
        assert error.value.error_code == errno.EINVAL
    with pytest.raises(PyverbsRDMAError):
        AH(end.pd, attr=AHAttr(dlid=1))  # Ethernet has no local addresses


def test_an_address_vector_goes_both_ways():
    route = GlobalRoute(GID("fe80:0000:0000:0000:0001:0002:0003:0004"), 11, 2, 13, 14)
    made = AHAttr(5, 6, 7, 8, 1, 1, route)
    vector = made.vector()
    assert (vector.dlid, vector.sl, vector.src_path_bits, vector.static_rate) == (5, 6, 7, 8)
    assert (vector.is_global, vector.port_num) == (True, 1)
    assert (vector.flow_label, vector.sgid_index, vector.hop_limit, vector.traffic_class) == (11, 2, 13, 14)
    assert vector.dgid == bytes.fromhex("fe800000000000000001000200030004")
    assert AHAttr.of(vector).vector() == vector
    assert made.dgid == route.dgid
    made.dgid = "fe80:0000:0000:0000:0000:0000:0000:0009"
    assert made.vector().dgid[-1] == 9
    assert AHAttr(5).dgid is None
    assert (AHAttr(5).hop_limit, AHAttr(5).vector().is_global) == (0, False)
    with pytest.raises(PyverbsUserError):
        AHAttr(is_global=1)
