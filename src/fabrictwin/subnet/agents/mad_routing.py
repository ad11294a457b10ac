"""Routing of management datagrams: by directed route, by forwarding tables, or to software on a port.

The network is handed datagrams with the slot that they leave from, and says what becomes of each. Whoever runs
software on a node (a subnet manager, a tool of the endpoint's) attaches to the slot and gets what is for it.

Management packets are taken not to queue: they are too few. What each took is the caller's to count, by hops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.congestion_agent import CongestionAgent
from fabrictwin.subnet.agents.pma import PerformanceAgent
from fabrictwin.subnet.agents.sma import SubnetAgent
from fabrictwin.subnet.agents.vendor_agent import VendorAgent
from fabrictwin.subnet.wire.fields import MadError
from fabrictwin.subnet.wire.header import (
    DIRECTION,
    MAD_BYTES,
    MAX_HOPS,
    PERMISSIVE_LID,
    RESPONSE,
    MadClass,
    Method,
    check_mad,
)
from fabrictwin.subnet.wire.smp import AttributeId, PortState

LONGEST_ROUTE = 64
_UNICAST_END = 0xC000
PACKET_WORDS = (8 + 12 + 8 + 256 + 4) // 4  # LRH, BTH, DETH, MAD, ICRC


@dataclass(frozen=True, slots=True)
class Frame:
    """A datagram with what its packet says beside it."""

    dlid: int
    slid: int
    dqp: int
    sqp: int
    mad: bytes
    length: int = MAD_BYTES  # as the sender told it: an answer of several datagrams is longer than one


class Fate(IntEnum):
    """Fate of a datagram."""

    ANSWERED = 0  # `frame` goes back to the sender
    FORWARDED = 1  # `frame` is for software at `slot`
    UNROUTABLE = 2  # the sender will wait for nothing
    DROPPED = 3  # nobody answers, and nobody should


@dataclass(frozen=True, slots=True)
class Outcome:
    fate: Fate
    slot: int = NONE
    frame: Frame | None = None
    hops: int = 0


_UNROUTABLE = Outcome(Fate.UNROUTABLE)
_DROPPED = Outcome(Fate.DROPPED)


class Network:
    """The way datagrams take over one fabric."""

    def __init__(self, state: SubnetState) -> None:
        self.state = state
        self.sma = SubnetAgent(state)
        self.pma = PerformanceAgent(state)
        self.congestion = CongestionAgent(state)
        self.vendor = VendorAgent(state)
        self.managers: set[int] = set()  # slots where subnet management software listens
        self.datagrams = 0

    def send(self, slot: int, frame: Frame, now_ps: int) -> Outcome:
        """Carry a datagram that software at `slot` sends. Returns its fate; malformed ones are dropped."""
        self.datagrams += 1
        try:
            check_mad(frame.mad)
            if frame.mad[1] == MadClass.SUBN_DIRECTED:
                return self._directed(slot, frame, now_ps)
            return self._by_lid(slot, frame, now_ps)
        except MadError:
            self.state.malformed += 1
            return _DROPPED

    # -- directed routes -----------------------------------------------------------------------------------

    def walk(self, slot: int, hops: int, path: bytes) -> tuple[int, bytes]:
        """(slot where the route ends, return path); the slot is NONE where a hop leads nowhere.

        IBTA volume 1, 14.2.2: hop k leaves by port `path[k]`; the port where it arrives is written to byte k
        of the return path. Only switches pass datagrams on.
        """
        state = self.state
        link, base, node_of, number, ports = state.link, state.base, state.node_of, state.number, state.ports
        back = bytearray(64)
        here = slot
        for k in range(1, hops + 1):
            node = node_of[here]
            out = path[k]
            if not 1 <= out <= ports[node] or (k > 1 and (not state.is_switch[node] or node in state.silent)):
                return NONE, b""
            here = link[base[node] + out]
            if here < 0:
                return NONE, b""
            back[k] = number[here]
        return here, bytes(back)

    def _directed(self, slot: int, frame: Frame, now_ps: int) -> Outcome:
        mad = frame.mad
        is_response, hops = mad[3] & RESPONSE, mad[7]
        if bool(mad[4] & DIRECTION >> 8) != bool(is_response):
            raise MadError("the direction bit contradicts the method")
        if is_response:
            return self._directed_back(slot, frame)
        if mad[6] != 0:
            raise MadError(f"got hop pointer {mad[6]} at the start of a directed route, expected 0")
        dr_slid, dr_dlid = mad[32] << 8 | mad[33], mad[34] << 8 | mad[35]
        start, before = slot, 0
        if dr_slid != PERMISSIVE_LID:  # the first part goes by tables
            start, before = self.route(slot, frame.dlid)
            if start == NONE:
                return _UNROUTABLE
        end, back = self.walk(start, hops, mad[128:192])
        if end == NONE:
            return _UNROUTABLE
        after = 0
        if dr_dlid != PERMISSIVE_LID:  # so does the last
            end, after = self.route(end, dr_dlid)
            if end == NONE:
                return _UNROUTABLE
        request = mad[:192] + back
        taken = before + hops + after
        node = self.state.node_of[end]
        if self._is_for_software(request):
            if end not in self.managers:
                return _UNROUTABLE
            # software sees the datagram as its agent does: the pointer beyond the last hop
            seen = request[:6] + bytes([hops + 1 if hops < MAX_HOPS else hops]) + request[7:]
            return Outcome(Fate.FORWARDED, end, replace(frame, mad=seen), taken)
        if not self.state.alive[node] or node in self.state.silent:
            return _UNROUTABLE
        answer = self.sma.answer(node, end, request, now_ps)
        if answer is None:
            return _DROPPED
        answer = answer[:6] + b"\0" + answer[7:]  # the pointer is back at the start
        return Outcome(Fate.ANSWERED, slot, Frame(frame.slid, frame.dlid, frame.sqp, frame.dqp, answer), 2 * taken)

    def _directed_back(self, slot: int, frame: Frame) -> Outcome:
        """An answer of software goes back the way that the request came."""
        mad = frame.mad
        state, here, hops = self.state, slot, mad[7]
        for k in range(hops, 0, -1):
            node, out = state.node_of[here], mad[192 + k]
            if not 1 <= out <= state.ports[node] or (k < hops and not state.is_switch[node]):
                return _UNROUTABLE
            here = state.link[state.base[node] + out]
            if here < 0:
                return _UNROUTABLE
        return Outcome(Fate.FORWARDED, here, replace(frame, mad=mad[:6] + b"\0" + mad[7:]), hops)

    # -- forwarding tables ---------------------------------------------------------------------------------

    def route(self, slot: int, lid: int) -> tuple[int, int]:
        """(end slot, hops) that the tables lead to from a slot; NONE where they lead nowhere.

        As packets do: over links that are active at both ends, as far as a switch's LinearFDBTop reaches.
        """
        state = self.state
        here, hops = slot, 0
        while hops < LONGEST_ROUTE:
            node = state.node_of[here]
            if state.owns(node, lid):
                return state.end_slot(node), hops
            if state.is_switch[node]:
                top = state.switch_info[node][6] << 8 | state.switch_info[node][7]
                if lid > top or lid >= state.lft.shape[1] or not state.alive[node]:
                    return NONE, hops
                out = int(state.lft[state.row[node], lid])
                if not 1 <= out <= state.ports[node]:
                    return NONE, hops
                out += state.base[node]
            elif hops:
                return NONE, hops  # a channel adapter passes nothing on
            else:
                out = here
            far = state.link[out]
            if far < 0 or state.logical(out) != PortState.ACTIVE or state.logical(far) != PortState.ACTIVE:
                return NONE, hops
            self._count(out, far)
            here = far
            hops += 1
        return NONE, hops

    def _count(self, out: int, far: int) -> None:
        """Management by LID shares the data's counters; directed routes do not."""
        counters = self.state.counters
        counters["xmit_packets"][out] += 1
        counters["xmit_data"][out] += PACKET_WORDS
        counters["rcv_packets"][far] += 1
        counters["rcv_data"][far] += PACKET_WORDS

    def _by_lid(self, slot: int, frame: Frame, now_ps: int) -> Outcome:
        slid = frame.slid or self.state.lid(self.state.end_slot(self.state.node_of[slot]))
        frame = replace(frame, slid=slid)
        if not 0 < frame.dlid < _UNICAST_END:
            return _UNROUTABLE
        end, hops = self.route(slot, frame.dlid)
        if end == NONE:
            return _UNROUTABLE
        mad, node = frame.mad, self.state.node_of[end]
        if mad[3] & RESPONSE or self._is_for_software(mad):
            if not mad[3] & RESPONSE and end not in self.managers and mad[3] != Method.REPORT:
                return _UNROUTABLE
            return Outcome(Fate.FORWARDED, end, frame, hops)
        if not self.state.alive[node] or node in self.state.silent:
            return _UNROUTABLE
        if mad[1] == MadClass.SUBN_LID:
            answer = self.sma.answer(node, end, mad, now_ps)
        elif mad[1] == MadClass.PERF:
            answer = self.pma.answer(node, mad)
        elif mad[1] == MadClass.CONGESTION:
            answer = self.congestion.answer(node, end, mad, now_ps)
        elif mad[1] == MadClass.VENDOR:
            answer = self.vendor.answer(node, mad, now_ps)
        else:
            return _UNROUTABLE  # a class that no agent of the twin has
        if answer is None:
            return _DROPPED
        back, hops_back = self.route(end, slid)
        if back == NONE or self.state.node_of[back] != self.state.node_of[slot]:
            return _UNROUTABLE
        reply = Frame(slid, frame.dlid, frame.sqp, frame.dqp, answer)
        return Outcome(Fate.ANSWERED, slot, reply, hops + hops_back)

    @staticmethod
    def _is_for_software(mad: bytes) -> bool:
        """Requests that the agents in hardware leave to the manager: SMInfo, traps, subnet administration."""
        if mad[1] == MadClass.SUBN_ADM:
            return True
        if mad[1] in (MadClass.SUBN_LID, MadClass.SUBN_DIRECTED):
            return mad[3] == Method.TRAP or (mad[16] << 8 | mad[17]) == AttributeId.SM_INFO
        return False

    # -- traps ---------------------------------------------------------------------------------------------

    def traps(self, now_ps: int, *, plane: int | None = None) -> list[Outcome]:
        """Traps that leave for a manager now, of one subnet or of all, as frames for its slot."""
        out = []
        for trap in self.state.notices.due(now_ps, plane=plane):
            end, hops = self.route(trap.slot, self.state.sm_lid(trap.slot))
            if end == NONE or end not in self.managers:
                continue
            mad = trap_mad(trap.tid, trap.notice.encode())
            frame = Frame(self.state.sm_lid(trap.slot), self.state.lid(trap.slot), 0, 0, mad)
            out.append(Outcome(Fate.FORWARDED, end, frame, hops))
        return out


def trap_mad(tid: int, notice: bytes, method: int = Method.TRAP) -> bytes:
    """A notice as a LID-routed subnet management datagram."""
    from fabrictwin.subnet.wire.header import LidSmp

    return LidSmp(method=method, tid=tid, attribute=AttributeId.NOTICE, data=notice).encode()
