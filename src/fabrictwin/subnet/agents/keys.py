"""M_Keys, kept and enforced (IBTA volume 1, 14.2.4).

From the first datagram with a wrong key the lease period runs; the right one stops it, and when it is over the
protection is lifted, so that a new manager may read the key.
"""

from __future__ import annotations

from fabrictwin.base.units import PS_PER_S
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.wire.fields import Field
from fabrictwin.subnet.wire.smp import PortInfo

KEY = Field(PortInfo, "m_key")
PROTECT = Field(PortInfo, "m_key_protect_bits")
_LEASE = Field(PortInfo, "m_key_lease_period")  # seconds
_VIOLATIONS = Field(PortInfo, "m_key_violations")


class Keys:
    """Protection of a fabric's ports by keys."""

    def __init__(self, state: SubnetState) -> None:
        self.state = state

    def _slot(self, m: int, entry: int) -> int:
        return self.state.base[m] if self.state.is_switch[m] else entry

    def may_write(self, m: int, entry: int, key: int, now_ps: int) -> bool:
        """Return whether a Set that came in at slot `entry` of node `m` is obeyed; a wrong key is counted."""
        slot = self._slot(m, entry)
        return self._knows(slot, key, now_ps) or self._violation(slot, now_ps)

    def may_read(self, m: int, entry: int, key: int, now_ps: int) -> bool:
        """The same of a Get, which a protected port alone refuses."""
        slot = self._slot(m, entry)
        if self._knows(slot, key, now_ps) or PROTECT.get(self.state.info, 64 * slot) < 2:
            return True
        return self._violation(slot, now_ps)

    def _knows(self, slot: int, key: int, now_ps: int) -> bool:
        """Return whether a datagram has the port's key; a lease that is over lifts the protection first."""
        own = KEY.get(self.state.info, 64 * slot)
        if own == 0:
            return True
        ends = self.state.m_key_lease.get(slot)
        if ends is not None and now_ps >= ends:
            PROTECT.put(self.state.info, 0, 64 * slot)
            del self.state.m_key_lease[slot]
        if own != key:
            return False
        self.state.m_key_lease.pop(slot, None)
        return True

    def _violation(self, slot: int, now_ps: int) -> bool:
        """Count it, and let the lease run from the first one on."""
        at = 64 * slot
        _VIOLATIONS.put(self.state.info, min(_VIOLATIONS.get(self.state.info, at) + 1, 0xFFFF), at)
        period = _LEASE.get(self.state.info, at)
        if period:
            self.state.m_key_lease.setdefault(slot, now_ps + period * PS_PER_S)
        return False
