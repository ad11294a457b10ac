"""Notices of nodes to the manager: traps, repeated until it represses them (IBTA volume 1, 13.4.9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fabrictwin.subnet.agents.port_states import PortStates
from fabrictwin.subnet.wire.fields import Field
from fabrictwin.subnet.wire.notice import (
    LinkStateDetails,
    LocalChangesDetails,
    Notice,
    NoticeType,
    PortDetails,
    Producer,
    Trap,
)
from fabrictwin.subnet.wire.smp import PortInfo

FIRST_TID = 0x7A70_0000_0000_0000
_CAPABILITIES = Field(PortInfo, "capability_mask")
_SUBNET_TIMEOUT = Field(PortInfo, "subnet_timeout")


@dataclass
class PendingTrap:
    """A notice that its issuer repeats until the manager represses it."""

    slot: int
    notice: Notice
    tid: int
    due_ps: int


class Notices:
    """The pending traps of one fabric."""

    def __init__(self, state: PortStates) -> None:
        self.state = state
        self.pending: list[PendingTrap] = []
        # causes of traps that come by themselves: the next time in a plane, and what is due by now
        self.next_cause: list[Callable[[int], int | None]] = []
        self.raise_due: list[Callable[[int], None]] = []
        self._next_tid = FIRST_TID
        self._security_ps: dict[int, int] = {}  # by slot, when its last security trap was sent

    def raise_trap(self, m: int, trap: Trap, now_ps: int, *, port: int = 0, changes: int = 0) -> None:
        """A node has something to tell: 128, 129 to 131 (at `port`), 144 (`changes` are its change bits)."""
        slot = self.state.end_slot(m)
        lid = self.state.lid(slot)
        kind, details = NoticeType.URGENT, b""
        if trap == Trap.LINK_STATE_CHANGE:
            details = LinkStateDetails(lid=lid).encode()
        elif trap == Trap.LOCAL_CHANGES:
            kind = NoticeType.INFORMATIONAL
            changed = LocalChangesDetails(lid=lid, capability_mask=_CAPABILITIES.get(self.state.info, 64 * slot))
            changed.other_local_changes = 1 if changes else 0
            changed.node_description_change = changes & 1
            changed.link_width_enabled_change = changes >> 1 & 1
            changed.link_speed_enabled_change = changes >> 2 & 1
            details = changed.encode()
        else:
            details = PortDetails(lid=lid, port=port).encode()
        producer = Producer.SWITCH if self.state.is_switch[m] else Producer.CA
        notice = Notice(type=kind, producer_type=producer, trap_number=trap, issuer_lid=lid, details=details)
        for pending in self.pending:
            if pending.slot == slot and pending.notice == notice:
                pending.due_ps = min(pending.due_ps, now_ps)
                return
        self._append(slot, notice, now_ps)

    def raise_security_trap(self, m: int, trap: Trap, details: bytes, now_ps: int) -> None:
        """A node was sent a bad key: 257 to 259. It tells of one at a time, and of no more than one a timeout.

        PortInfo.SubnetTimeOut sets the rate at which a port may send traps (14.2.5.6); others in between are only
        counted.
        """
        slot = self.state.end_slot(m)
        if any(t.slot == slot and t.notice.type == NoticeType.SECURITY for t in self.pending):
            return
        producer = Producer.SWITCH if self.state.is_switch[m] else Producer.CA
        lid = self.state.lid(slot)
        notice = Notice(
            type=NoticeType.SECURITY, producer_type=producer, trap_number=trap, issuer_lid=lid, details=details
        )
        last = self._security_ps.get(slot)
        self._append(slot, notice, now_ps if last is None else max(now_ps, last + self._timeout_ps(slot)))

    def _append(self, slot: int, notice: Notice, due_ps: int) -> None:
        self._next_tid += 1
        self.pending.append(PendingTrap(slot, notice, self._next_tid, due_ps))

    def _timeout_ps(self, slot: int) -> int:
        """4.096 us x 2^SubnetTimeOut."""
        return 4_096_000 << _SUBNET_TIMEOUT.get(self.state.info, 64 * slot)

    def repress(self, m: int, notice: Notice) -> None:
        """The manager has heard a trap."""
        slot = self.state.end_slot(m)
        key = (notice.trap_number, notice.details)
        self.pending = [
            t for t in self.pending if t.slot != slot or (t.notice.trap_number, t.notice.details) != key
        ]

    def next_ps(self, plane: int) -> int | None:
        """Return when a node of that subnet next has a trap to send; None where none has."""
        causes = [cause(plane) for cause in self.next_cause]
        due = [at for at in causes if at is not None]
        due += [
            t.due_ps
            for t in self.pending
            if self.state.sm_lid(t.slot)
            and self.state.alive[self.state.node_of[t.slot]]
            and self.state.plane_of(self.state.node_of[t.slot]) == plane
        ]
        return min(due, default=None)

    def due(self, now_ps: int, *, plane: int | None = None) -> list[PendingTrap]:
        """Traps to send now, and again after the subnet's timeout. Without a manager there is nobody to tell."""
        for raise_due in self.raise_due:
            raise_due(now_ps)
        out = []
        for trap in list(self.pending):
            if plane is not None and self.state.plane_of(self.state.node_of[trap.slot]) != plane:
                continue
            if self.state.sm_lid(trap.slot) == 0 or not self.state.alive[self.state.node_of[trap.slot]]:
                self.pending.remove(trap)
            elif trap.due_ps <= now_ps:
                trap.due_ps = now_ps + self._timeout_ps(trap.slot)
                if trap.notice.type == NoticeType.SECURITY:
                    self._security_ps[trap.slot] = now_ps
                out.append(trap)
        return out
