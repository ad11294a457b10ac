"""The management state of a fabric, composed: what nodes hold, the traps they send, faults of flow control."""

from __future__ import annotations

from fabrictwin.fabric.fabric import Fabric
from fabrictwin.subnet.agents.flow_control import FlowControl
from fabrictwin.subnet.agents.notices import Notices
from fabrictwin.subnet.agents.port_states import PortStates
from fabrictwin.subnet.wire.notice import Trap


class SubnetState(PortStates):
    """All that management agents read and write."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.notices = Notices(self)
        self.flow_control = FlowControl(self, self.notices)
        self.on_port_change.append(self._raise_link_state_change)

    def _raise_link_state_change(self, m: int, now_ps: int) -> None:
        """A switch tells its manager that a link came or went."""
        if self.alive[m]:
            self.notices.raise_trap(m, Trap.LINK_STATE_CHANGE, now_ps)
