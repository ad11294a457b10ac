"""The global route header that a datagram's receiver finds in its first 40 bytes (IBTA volume 1, section 8.3)."""

from __future__ import annotations

import struct

from support.clusters import boxes
from support.verbs_ends import QKEY, End, pair

from fabrictwin.verbs import current_host as place
from fabrictwin.verbs.pyverbs.addr import AH, AHAttr, GlobalRoute
from fabrictwin.verbs.pyverbs.enums import IBV_QPT_UD, IBV_WR_SEND  # type: ignore[attr-defined]
from fabrictwin.verbs.pyverbs.wr import SendWR

GRH_BYTES = 40
WC_GRH = 1
BASE_TRANSPORT_NEXT = 0x1B
LENGTH = 64


def received(one: End, other: End, *, is_global: bool):
    """The completion of a datagram of LENGTH bytes, and the header before it."""
    other.mr.write(b"\xee" * GRH_BYTES, GRH_BYTES)
    other.receive(1)
    route = GlobalRoute(other.ctx.query_gid(1, 0), sgid_index=0, hop_limit=64)
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
    assert word >> 28 == 6
    assert payload == 12 + 8 + LENGTH + 4  # BTH, DETH, the datagram, ICRC
    assert (following, hops) == (BASE_TRANSPORT_NEXT, 64)
    assert header[8:24] == one.ctx.adapter.gids[0].raw
    assert header[24:40] == other.ctx.adapter.gids[0].raw


def test_a_local_datagram_says_that_it_has_none():
    one, other = pair(boxes(8, "infiniband"), kind=IBV_QPT_UD)
    completion, _ = received(one, other, is_global=False)
    assert completion.wc_flags == 0
    assert completion.byte_len == GRH_BYTES + LENGTH
