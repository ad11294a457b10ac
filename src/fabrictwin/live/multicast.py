"""Multicast groups: queue pairs that are attached, and copies of datagrams to each of them.

Addresses are made as the kernel makes them (ip_ib_mc_map() in include/net/ip.h, cma_iboe_set_mgid() in
drivers/infiniband/core/cma.c). Switches copy a datagram where its ways part; here the sender's adapter sends one
copy for each member, so that n members take n times as long on its link.
"""

from __future__ import annotations

from dataclasses import replace

from fabrictwin.live.ring_queues import FIRST_MULTICAST_LID, RingQueuePair
from fabrictwin.verbs.adapter import qp_transitions
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.gid import ROCE_V2
from fabrictwin.verbs.adapter.queue_pair import QueuePair, QueuePairObjects, SendQueueLimits
from fabrictwin.verbs.adapter.transport import requester
from fabrictwin.verbs.adapter.work_requests import AddressVector, Work

_SCOPE = 0x0E
_IPOIB_SIGNATURE = b"\x40\x1b"
_CM_SIGNATURE = 0x01  # cma: "RDMA CM signature" in place of the scope, for port space UDP
_UDP_SPACE = 0x0111
MULTICAST_QPN = 0xFFFFFF
MOST_GROUPS, MOST_MEMBERS = 8192, 56  # RXE_MAX_MCAST_GRP, RXE_MAX_MCAST_QP_ATTACH (rxe_param.h)


def group_qkey() -> int:
    """The Q_Key of groups that the connection manager joins (RDMA_UDP_QKEY)."""
    return 0x01234567


def group_of(adapter: Adapter, ip: bytes, space: int) -> tuple[bytes, int]:
    """(MGID, MLID) of an IPv4 multicast address, as seen from an adapter."""
    if adapter.ethernet:
        if adapter.roce_mode == ROCE_V2:
            return bytes(10) + b"\xff\xff" + ip, 0
        return bytes((0xFF, _SCOPE)) + bytes(8) + b"\xff\xff" + ip, 0
    low = bytes((ip[0] & 0x0F, *ip[1:]))
    head = bytes((0xFF, 0x12)) + _IPOIB_SIGNATURE + adapter.pkeys[0].to_bytes(2, "big")
    gid = bytearray(head + bytes(6) + low)
    if space == _UDP_SPACE:
        gid[7] = _CM_SIGNATURE
    number = int.from_bytes(low, "big")
    return bytes(gid), FIRST_MULTICAST_LID + number % (0xFFFE - FIRST_MULTICAST_LID)


class Groups:
    """Attached queue pairs by group."""

    def __init__(self) -> None:
        self.attached: dict[bytes, list[RingQueuePair]] = {}

    def join(self, gid: bytes, pair: RingQueuePair) -> bool:
        """Attach a queue pair to a group. Returns False where there is no room for it."""
        if gid not in self.attached and len(self.attached) >= MOST_GROUPS:
            return False
        members = self.attached.setdefault(gid, [])
        if pair not in members:
            if len(members) >= MOST_MEMBERS:
                return False
            members.append(pair)
        return True

    def leave(self, gid: bytes, pair: RingQueuePair) -> None:
        members = self.attached.get(gid, [])
        if pair in members:
            members.remove(pair)
            if not members:
                del self.attached[gid]

    def members(self, gid: bytes, sender: Adapter) -> list[RingQueuePair]:
        """Queue pairs that get a datagram: those on the sender's network."""
        return [
            pair
            for pair in self.attached.get(gid, ())
            if pair.adapter.plane == sender.plane and pair.state in qp_transitions.RECEIVING
        ]

    def post(self, pair: RingQueuePair, work: Work) -> int:
        """Send a datagram to every member; the program sees one completion. Returns an errno, or 0."""
        vector = work.vector
        assert vector is not None
        members = self.members(vector.dgid, pair.adapter)
        if not members:
            work.vector = replace(vector, dlid=0xFFFF, dgid=bytes(16))
            return requester.post(pair, work)  # to nobody
        if work.data is None:
            places = pair.memory.local_segments(work.segments, pair.domain, 0)
            if places is None:
                return requester.post(pair, work)  # completes with its protection error
            work.data = pair.world.process_memory.gather(places)
        last, others = members[-1], members[:-1]
        for member in others:
            copy = Work(_shadow(pair), work.wr_id, work.opcode, work.flags, (), work.immediate)
            copy.data, copy.length = work.data, work.length
            self._direct(copy, vector, member, work.remote_qkey)
            requester.post(copy.qp, copy)
        self._direct(work, vector, last, work.remote_qkey)
        return requester.post(pair, work)

    @staticmethod
    def _direct(work: Work, vector: AddressVector, member: RingQueuePair, queue_key: int) -> None:
        to = member.adapter
        gid = to.gids[to.gid_index(ROCE_V2)].raw if to.ethernet else to.gids[0].raw
        work.vector = replace(vector, dlid=to.lid, dgid=gid)
        work.remote_qpn, work.remote_qkey = member.number, queue_key


def _shadow(pair: RingQueuePair) -> QueuePair:
    """Return what sends the copies of a queue pair's datagrams: its like, without completions."""
    shadow = pair.copies
    if shadow is None:
        shadow = pair.copies = QueuePair(
            pair.world,
            pair.adapter,
            pair.kind,
            QueuePairObjects(pair.domain, sends=None, receive_completions=None, receives=None),
            SendQueueLimits(max_wr=1 << 30, max_sge=pair.max_send_sge, max_inline=1 << 30, signal_all=False),
        )
        pair.adapter.queue_pairs.pop(shadow.number)
        shadow.number = pair.number
    shadow.attributes, shadow.state = pair.attributes, qp_transitions.RTS
    return shadow
