"""Commands of the console that a manager carries out: other partitions, other lanes, members of multicast groups.

`partitions FILE` and `qos FILE` give it settings, which it takes with a heavy sweep as OpenSM does that is told to
read its files again. `join NODE MGID` and `leave NODE MGID` are datagrams of that node's port to subnet
administration (an MCMemberRecord set, or deleted). A group that is not there yet is made by who joins first, with
the P_Key at index 0 of its port.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import AddressValueError, IPv6Address
from itertools import count
from pathlib import Path

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.agents.port_states import FULL_PKEY
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.settings.qos import read_qos
from fabrictwin.subnet.operation.cluster_endpoint import partitioned
from fabrictwin.subnet.serve.console import OF_MANAGERS, find_node, find_target
from fabrictwin.subnet.serve.endpoint import OWN_TID, Endpoint
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.header import Method, SaMad, SaStatus
from fabrictwin.subnet.wire.smp import PKeyTable, PortInfo

SETTINGS = ("partitions", "qos")
QKEY = 0x0B1B  # of groups that come to be by a join, as IPoIB's have it
_NUMBERS = count(1 << 32)  # transaction ids beside those of the managers' own questions


def verb_of(line: str) -> str:
    """Return a line's command if a manager is to carry it out, otherwise an empty string."""
    verb = line.split(None, 1)[0] if line.strip() else ""
    return verb if verb in OF_MANAGERS else ""


def settings_after(line: str, settings: Settings, endpoint: Endpoint, host: str = "") -> Settings:
    """A manager's settings after `partitions FILE` or `qos FILE`. Raises ConfigError."""
    verb, _, argument = line.strip().partition(" ")
    if not argument.strip():
        raise ConfigError(f"got {line!r}, expected '{verb} FILE'")
    path = Path(argument.strip())
    return (
        partitioned(settings, path, endpoint, host)
        if verb == "partitions"
        else replace(settings, **read_qos(path))
    )


def member_of(line: str, state: SubnetState) -> tuple[int, int]:
    """(node, MGID) of `join NODE MGID` or `leave NODE MGID`. Raises ConfigError."""
    verb, _, rest = line.strip().partition(" ")
    name, _, address = rest.strip().rpartition(" ")
    if not name:
        raise ConfigError(f"got {line!r}, expected '{verb} NODE MGID', such as '{verb} host-1 ff12:401b:ffff::1'")
    try:
        mgid = int(IPv6Address(address))
    except AddressValueError:
        raise ConfigError(f"got {quoted(address)}, expected an MGID such as 'ff12:401b:ffff::1'") from None
    if mgid >> 120 != 0xFF:
        raise ConfigError(f"got {quoted(address)}, expected an MGID, which begins with ff")
    return find_node(state, name.strip()), mgid


def target_of(line: str, endpoint: Endpoint, settings: Settings) -> int:
    """The managed node that a line is about; NONE for all subnets. Raises ConfigError for what cannot be done."""
    verb = verb_of(line)
    if verb in SETTINGS:
        settings_after(line, settings, endpoint)
        return NONE
    return member_of(line, endpoint.state)[0] if verb else find_target(endpoint.state, line)


class Membership:
    """A node's request to join or leave a group: its datagrams, and what comes back."""

    def __init__(self, line: str, endpoint: Endpoint) -> None:
        self.line, self.endpoint = line, endpoint
        self.node, self.mgid = member_of(line, endpoint.state)
        self.slot = endpoint.state.end_slot(self.node)
        self.leaves = verb_of(line) == "leave"
        self._tid = b""
        self._makes_the_group = False

    def request(self) -> Frame:
        """Return the datagram to send now."""
        state = self.endpoint.state
        port_gid = int.from_bytes(state.get(self.slot)[8:16], "big") << 64 | state.port_guid[self.node]
        fields = {"mgid": self.mgid, "port_gid": port_gid, "join_state": 1}
        if self._makes_the_group:
            held = state.pkeys.get((self.slot, 0))
            key = FULL_PKEY if held is None else PKeyTable.decode(held).pkeys[0]
            fields |= {"pkey": key | 0x8000, "qkey": QKEY, "sl": 0, "flow_label": 0, "tclass": 0}
        tid = OWN_TID << 48 | next(_NUMBERS)
        self._tid = tid.to_bytes(8, "big")
        self.endpoint.awaited[self._tid] = None
        mad = SaMad(
            method=Method.DELETE if self.leaves else Method.SET,
            tid=tid,
            attribute=sa.RecordId.MC_MEMBER,
            component_mask=sa.component_mask(sa.McMemberRecord, *fields),
            data=sa.McMemberRecord(**fields).encode(),
        ).encode()
        info = PortInfo.decode(state.get(self.slot))
        return Frame(info.master_sm_lid, state.lid(self.slot), 1, 1, mad)

    @property
    def is_answered(self) -> bool:
        """Return whether an answer is here."""
        return self.endpoint.awaited.get(self._tid) is not None

    def conclude(self) -> str | None:
        """Say for people what came of it; None where the group is to be made first, by another request."""
        frame = self.endpoint.awaited.pop(self._tid, None)
        if frame is None:
            return "no answer"
        mad = SaMad.decode(frame.mad)
        if mad.status == SaStatus.INSUFFICIENT_COMPONENTS and not (self.leaves or self._makes_the_group):
            self._makes_the_group = True
            return None
        if mad.status:
            known = {int(one): one.name.lower().replace("_", " ") for one in SaStatus}
            return f"refused: {known.get(mad.status, f'status 0x{mad.status:04x}')}"
        record = sa.McMemberRecord.decode(mad.data)
        return f"{'left' if self.leaves else 'a member of'} MLID 0x{record.mlid:04x}"
