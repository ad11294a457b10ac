"""Packets whose P_Key or Q_Key does not match: counted where they are dropped, and told of by traps 257 to 259.

An adapter counts in PortInfo (P_KeyViolations, Q_KeyViolations, which stop at 65,535). A switch port that enforces
partitions looks at the key's lower 15 bits, inbound at what its neighbour sends and outbound at what goes there,
and counts in PortRcvConstraintErrors and PortXmitConstraintErrors (IBTA volume 1, 10.9, 14.2.5.6, 16.1.3.5).
"""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.wire.fields import Field
from fabrictwin.subnet.wire.notice import BadKeyDetails, SwitchBadKeyDetails, Trap
from fabrictwin.subnet.wire.smp import PortInfo

_COUNTER = {
    Trap.BAD_P_KEY: Field(PortInfo, "p_key_violations"),
    Trap.BAD_Q_KEY: Field(PortInfo, "q_key_violations"),
}
_PREFIX = Field(PortInfo, "gid_prefix")
_EVERY_FIELD = 0xFFFF  # of the data that trap 259 may leave out


@record
class BadKey:
    """What a packet carried, between ports at these slots."""

    source: int
    destination: int
    key: int
    service_level: int
    source_qp: int
    destination_qp: int


def refuse_at_port(
    state: SubnetState, bad: BadKey, packets: int, now_ps: int, trap: Trap = Trap.BAD_P_KEY
) -> None:
    """The receiving adapter dropped packets: for their P_Key, or their Q_Key (`trap` BAD_Q_KEY)."""
    at, counter = 64 * bad.destination, _COUNTER[trap]
    counter.put(state.info, min(counter.get(state.info, at) + packets, 0xFFFF), at)
    details = BadKeyDetails(
        source_lid=state.lid(bad.source),
        destination_lid=state.lid(bad.destination),
        key=bad.key,
        service_level=bad.service_level,
        source_qp=bad.source_qp & 0xFFFFFF,
        destination_qp=bad.destination_qp & 0xFFFFFF,
        source_gid=_gid(state, bad.source),
        destination_gid=_gid(state, bad.destination),
    )
    state.notices.raise_security_trap(state.node_of[bad.destination], trap, details.encode(), now_ps)


def refuse_at_switch(
    state: SubnetState, bad: BadKey, packets: int, now_ps: int, *, slot: int, outbound: bool
) -> None:
    """A switch's port dropped packets, on their way out or in."""
    state.counters["xmit_constraint_errors" if outbound else "rcv_constraint_errors"][slot] += packets
    m = state.node_of[slot]
    details = SwitchBadKeyDetails(
        data_valid=_EVERY_FIELD,
        source_lid=state.lid(bad.source),
        destination_lid=state.lid(bad.destination),
        key=bad.key & 0xFFFF,
        service_level=bad.service_level,
        source_qp=bad.source_qp & 0xFFFFFF,
        destination_qp=bad.destination_qp & 0xFFFFFF,
        source_gid=_gid(state, bad.source),
        destination_gid=_gid(state, bad.destination),
        switch_lid=state.lid(state.end_slot(m)),
        port=state.number[slot],
    )
    state.notices.raise_security_trap(m, Trap.BAD_P_KEY_AT_SWITCH, details.encode(), now_ps)


def _gid(state: SubnetState, slot: int) -> int:
    return _PREFIX.get(state.info, 64 * slot) << 64 | state.port_guid[state.node_of[slot]]
