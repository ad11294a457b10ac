"""The global route header that a datagram's receiver finds in its first 40 bytes (IBTA volume 1, section 8.3)."""

from __future__ import annotations

import struct

import pytest
from scapy.layers.inet import IP
from support.clusters import boxes
from support.verbs_ends import QKEY, End, pair

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.adapter.transport import unreliable
from fabrictwin.verbs.pyverbs.addr import AH, AHAttr, GlobalRoute
from fabrictwin.verbs.pyverbs.enums import IBV_QPT_UD, IBV_WR_SEND  # type: ignore[attr-defined]
from fabrictwin.verbs.pyverbs.wr import SendWR

GRH_BYTES = 40
WC_GRH = 1
BASE_TRANSPORT_NEXT = 0x1B
LENGTH = 64


def received(one: End, other: End, *, is_global: bool, gid: int = 0, traffic_class: int = 0):
    """The completion of a datagram of LENGTH bytes, and the header before it."""
    other.mr.write(b"\xee" * GRH_BYTES, GRH_BYTES)
    other.receive(1)
    route = GlobalRoute(
        other.ctx.query_gid(1, gid), sgid_index=gid, hop_limit=64, traffic_class=traffic_class, flow_label=0xABCDE
    )
    address = AHAttr(dlid=other.ctx.query_port(1).lid, gr=route, is_global=int(is_global))
    request = SendWR(1, IBV_WR_SEND, 1, 0, [one.sge(0, LENGTH)], 2)
    request.set_wr_ud(AH(one.pd, attr=address), other.qp.qp_num, QKEY)
    one.qp.post_send(request)
    one.done()
    place.world().settle()
    count, completions = other.cq.poll(1)
    assert count == 1
    return completions[0], other.mr.read(GRH_BYTES, 0)


def test_a_global_datagram_over_infiniband_comes_with_its_route():
    one, other = pair(boxes(8, "infiniband"), kind=IBV_QPT_UD)
    completion, header = received(one, other, is_global=True)
    assert completion.wc_flags == WC_GRH
    assert completion.byte_len == GRH_BYTES + LENGTH
    word, payload, following, hops = struct.unpack("!IHBB", header[:8])
    assert word == 6 << 28 | 0xABCDE
    assert payload == 12 + 8 + LENGTH + 4  # BTH, DETH, the datagram, ICRC
    assert (following, hops) == (BASE_TRANSPORT_NEXT, 64)
    assert header[8:24] == one.ctx.adapter.gids[0].raw
    assert header[24:40] == other.ctx.adapter.gids[0].raw


def test_a_local_datagram_says_that_it_has_none():
    one, other = pair(boxes(8, "infiniband"), kind=IBV_QPT_UD)
    completion, _ = received(one, other, is_global=False)
    assert completion.wc_flags == 0
    assert completion.byte_len == GRH_BYTES + LENGTH


@pytest.mark.parametrize("traffic_class", [0, 0x68, 0xFF])
def test_a_datagram_over_ipv4_comes_with_its_ip_header_in_the_last_20_bytes(traffic_class):
    """IBTA volume 1, annex A17 (RoCE v2); fields and checksum as scapy reads them (RFC 791, 1071)."""
    one, other = pair(boxes(8, "ethernet"), kind=IBV_QPT_UD)
    ipv4 = bytes(10) + b"\xff\xff"
    gids = enumerate(one.ctx.adapter.gids)
    index = next(i for i, gid in gids if gid.kind == 2 and gid.raw[:12] == ipv4)
    completion, header = received(one, other, is_global=True, gid=index, traffic_class=traffic_class)
    assert completion.wc_flags == WC_GRH
    assert header[:20] == bytes(20)
    found = IP(header[20:])
    assert (found.version, found.ihl, found.tos, found.id, found.flags, found.frag) == (
        4,
        5,
        traffic_class,
        0,
        "DF",
        0,
    )
    assert found.len == 20 + 8 + 12 + 8 + LENGTH + 4  # IPv4, UDP, BTH, DETH, the datagram, ICRC
    assert (found.ttl, found.proto) == (64, 17)
    assert header[32:36] == one.ctx.adapter.gids[index].raw[12:]
    assert header[36:40] == other.ctx.adapter.gids[index].raw[12:]
    said = found.chksum
    del found.chksum
    assert IP(bytes(found)).chksum == said


@pytest.mark.parametrize(
    ("header", "checksum"),
    [
        ("45000073000040004011" + "0000" + "c0a80001c0a800c7", 0xB861),  # a worked example of RFC 1071's sum
        ("ffff" * 10, 0x0000),
        ("0000" * 10, 0xFFFF),
        ("fffe" + "0001" + "0000" * 8, 0x0000),
        ("ffff" * 9 + "0001", 0xFFFE),  # carries are added again, and theirs too
        ("ffff" * 2 + "0001" + "0000" * 7, 0xFFFE),  # an odd sum with a carry
    ],
)
def test_the_checksum_is_the_ones_complement_of_the_ones_complement_sum(header, checksum):
    assert unreliable._checksum(bytes.fromhex(header)) == checksum
