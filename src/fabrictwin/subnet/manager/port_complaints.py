"""What nodes complain of by traps 129 to 131 and 257 to 259: ports in trouble, and packets with bad keys.

Ports are named, and disabled where they never cease.

OpenSM calls such ports babbling and disables them if its `babbling_port_policy` says so.
"""

from __future__ import annotations

from collections import Counter

from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.manager.mad_transport import Transport, put
from fabrictwin.subnet.manager.sweep.discovery import Kind, Node, Port, Subnet
from fabrictwin.subnet.manager.sweep.programming import disable
from fabrictwin.subnet.wire.notice import BadKeyDetails, Notice, SwitchBadKeyDetails, Trap
from fabrictwin.subnet.wire.smp import AttributeId

COMPLAINTS = {
    Trap.LINK_INTEGRITY: "more errors on the wire from {far} than LocalPhyErrors allows",
    Trap.BUFFER_OVERRUN: "its buffer overruns, {far} ignores credits",
    Trap.FLOW_CONTROL_WATCHDOG: "no credit updates from {far}",
}
KEY_TRAPS = (Trap.BAD_P_KEY, Trap.BAD_Q_KEY, Trap.BAD_P_KEY_AT_SWITCH)


class Complaints:
    """Traps about ports of one subnet. A port is disabled after `most` traps; 0: never."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._times: Counter[tuple[int, int]] = Counter()  # by GUID and port
        self._babbling: list[Port] = []  # to be disabled

    def hear(self, subnet: Subnet, node: Node, number: int, trap: Trap) -> bool:
        """Note a trap of a port; whether the manager should look."""
        port = node.ports.get(number)
        if port is None:
            return False
        self._times[node.guid, number] += 1
        times = self._times[node.guid, number]
        if times == 1:
            far = "its other end" if port.peer is None else str(port.peer)
            subnet.find(Kind.TROUBLE, str(port), f"trap {int(trap)}: {COMPLAINTS[trap].format(far=far)}")
        if times == self.most:
            subnet.find(Kind.TROUBLE, str(port), f"disabled after {times} traps")
            self._babbling.append(port)
        return times in (1, self.most)

    def disable(self, transport: Transport) -> set[int]:
        """Disable the ports that were complained of too often; GUIDs of their nodes."""
        requests, nodes = [], set()
        for port in self._babbling:
            data = bytearray(port.info.encode())
            disable(data)
            requests.append(put(port.path, AttributeId.PORT_INFO, bytes(data), port.number))
            nodes.add(port.node.guid)
        self._babbling.clear()
        if requests:
            transport.exchange(requests)
        return nodes


def hear_bad_key(database: SubnetDatabase, issuer: Port, notice: Notice) -> bool:
    """Note from where to where packets with a bad key went; whether that is news. Raises MadError."""
    bad: SwitchBadKeyDetails | BadKeyDetails
    if notice.trap_number == Trap.BAD_P_KEY_AT_SWITCH:
        bad = SwitchBadKeyDetails.decode(notice.details)
    else:
        bad = BadKeyDetails.decode(notice.details)
    source, destination = (
        str(database.by_lid(lid) or f"LID {lid}") for lid in (bad.source_lid, bad.destination_lid)
    )
    where = str(issuer)
    if isinstance(bad, SwitchBadKeyDetails):
        where = str(issuer.node.ports.get(bad.port, issuer))
    name = "Q_Key" if notice.trap_number == Trap.BAD_Q_KEY else "P_Key"
    findings = database.subnet.findings
    known = len(findings)
    text = f"trap {notice.trap_number}: {name} 0x{bad.key:04x} of packets from {source} to {destination}"
    database.subnet.find(Kind.BAD_KEY, where, text)
    return len(findings) > known
