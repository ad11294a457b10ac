"""Election of the master (IBTA volume 1, 14.4.1): the states of a manager, and what managers ask each other.

The higher priority wins, then the lower GUID. A master keeps the subnet until it hands over: it asks a standby of
higher rank to take it. A standby polls its master and takes over when that stays silent or stands back. Two
masters meet when two parts of a subnet are joined; the lower yields.
"""

from __future__ import annotations

from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.manager.mad_transport import HERE, Transport, get, put
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep.discovery import Node, Subnet
from fabrictwin.subnet.manager.sweep.table_computation import port_guid
from fabrictwin.subnet.wire.header import DIRECTION, SMP_DATA, MadClass, Method
from fabrictwin.subnet.wire.smp import AttributeId, Capability, NodeInfo, SmInfo, SmState

# modifiers of a Set of SMInfo
HANDOVER, ACKNOWLEDGE, DISABLE, STANDBY, DISCOVER = 1, 2, 3, 4, 5
POLL_PS = PS_PER_S


class Election:
    """One manager's part in it. `wants_sweep` is set where a sweep is called for."""

    def __init__(self, transport: Transport, settings: Settings) -> None:
        self.transport = transport
        self.settings = settings
        self.state = SmState.DISCOVERING
        self.guid = 0  # of the manager's port
        self.activity = 0  # sweeps so far: whoever polls sees that it moves
        self.others: dict[int, tuple[int, SmInfo]] = {}  # other managers by GUID: LID and what they said
        self.wants_sweep = True
        self._master: Node | None = None
        self._missed = 0
        self._next_poll_ps = 0

    def sm_info(self) -> SmInfo:
        """Return what this manager says of itself. Its rank hangs on its GUID, which it must know first."""
        if not self.guid:
            (answer,) = self.transport.exchange([get(HERE, AttributeId.NODE_INFO)])
            if answer is not None and not answer[0]:
                self.guid = NodeInfo.decode(answer[1]).port_guid
        return SmInfo(
            guid=self.guid,
            sm_key=self.settings.sm_key,
            act_count=self.activity,
            priority=self.settings.priority,
            sm_state=self.state,
        )

    def _ranks_above(self, other: SmInfo) -> bool:
        """Higher priority wins, then the lower GUID (14.4.1)."""
        return (-self.settings.priority, self.guid) < (-other.priority, other.guid)

    def elect(self, subnet: Subnet) -> bool:
        """Ask every other manager what it is; says whether this one is to be master."""
        self.others = {}
        nodes = [
            (node, port)
            for node in subnet.nodes.values()
            for port in node.ends()
            if port.info.capability_mask & Capability.IS_SM and port_guid(port) != self.guid
        ]
        answers = self.transport.exchange([get(node.path, AttributeId.SM_INFO) for node, _ in nodes])
        above: list[tuple[Node, SmInfo]] = []
        for (node, port), answer in zip(nodes, answers, strict=True):
            if answer is None or answer[0]:
                continue  # it says that it manages, and nobody is there to ask
            info = SmInfo.decode(answer[1])
            self.others[port_guid(port)] = (port.info.lid, info)
            if info.sm_state == SmState.MASTER:
                # a master keeps the subnet until it hands over, but one of lower rank is asked to
                above.append((node, info))
            elif info.sm_state in (SmState.DISCOVERING, SmState.STANDBY) and not self._ranks_above(info):
                above.append((node, info))
        if self.state == SmState.MASTER:
            # the master goes on; one that ranks above it is given the subnet, by a SubnSet(SMInfo)
            better = [(node, info) for node, info in above if not self._ranks_above(info)]
            standby = [(node, info) for node, info in better if info.sm_state == SmState.STANDBY]
            if not standby:
                # two masters: the subnet was in two parts; the lower yields
                rival = [(node, info) for node, info in better if info.sm_state == SmState.MASTER]
                if rival:
                    self.stand_by(rival[0][0])
                    return False
                return True
            best = min(standby, key=lambda pair: (-pair[1].priority, pair[1].guid))
            (answer,) = self.transport.exchange(
                [put(best[0].path, AttributeId.SM_INFO, self.sm_info().encode(), HANDOVER)]
            )
            if answer is None or answer[0]:
                return True
            self.stand_by(best[0])
            return False
        if not above:
            return True
        masters = [pair for pair in above if pair[1].sm_state == SmState.MASTER]
        best = min(masters or above, key=lambda pair: (-pair[1].priority, pair[1].guid))
        self.stand_by(best[0])
        return False

    def stand_by(self, master: Node) -> None:
        self.state = SmState.STANDBY
        self._master, self._missed = master, 0
        self._next_poll_ps = self.transport.now_ps + POLL_PS

    def poll(self, now_ps: int) -> None:
        """A standby manager asks the master whether it lives (14.4.1)."""
        if self.state != SmState.STANDBY or self._master is None or now_ps < self._next_poll_ps:
            return
        self._next_poll_ps = now_ps + POLL_PS
        (answer,) = self.transport.exchange([get(self._master.path, AttributeId.SM_INFO)])
        info = None if answer is None or answer[0] else SmInfo.decode(answer[1])
        if info is not None and info.sm_state == SmState.MASTER:
            self._missed = 0
            return
        self._missed += 1
        if info is not None and info.sm_state in (SmState.STANDBY, SmState.NOT_ACTIVE) and self._ranks_above(info):
            self._missed = self.settings.take_over_after
        if self._missed >= self.settings.take_over_after:
            self.state = SmState.DISCOVERING
            self._master = None
            self.wants_sweep = True

    def answer(self, frame: Frame) -> Frame:
        mad = frame.mad
        modifier = int.from_bytes(mad[20:24], "big")
        if mad[3] == Method.SET:
            asked = SmInfo.decode(mad, SMP_DATA.start)
            if modifier == HANDOVER and self.state == SmState.STANDBY:
                self.state = SmState.DISCOVERING
                self._master = None
                self.wants_sweep = True
            elif modifier == DISABLE and self.state == SmState.STANDBY:
                self.state = SmState.NOT_ACTIVE
            elif modifier == {SmState.NOT_ACTIVE: STANDBY, SmState.STANDBY: DISCOVER}.get(self.state):
                self.state, self.wants_sweep = SmState.DISCOVERING, True
            self.others[asked.guid] = (frame.slid, asked)
        status = DIRECTION if mad[1] == MadClass.SUBN_DIRECTED else 0
        data = self.sm_info().encode().ljust(64, b"\0")
        answer = b"".join((mad[:3], b"\x81", status.to_bytes(2, "big"), mad[6:64], data, mad[128:]))
        return Frame(frame.slid, frame.dlid, frame.sqp, frame.dqp, answer)
