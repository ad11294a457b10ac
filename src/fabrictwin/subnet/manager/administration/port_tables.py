"""Records of what ports and switches hold in tables: lanes, arbitration, P_Keys, GUIDs, multicast.

The manager answers what it set, as OpenSM does. Where it leaves lanes and arbitration alone (`qos` off) it knows
none. A port has the GUIDs of its port alone: none was set beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fabrictwin.subnet.manager.administration.subscriptions import Reports
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.manager.sweep.discovery import Port
from fabrictwin.subnet.manager.sweep.table_computation import port_guid
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.fields import Attribute
from fabrictwin.subnet.wire.sa import RecordId
from fabrictwin.subnet.wire.smp import GuidInfo, PKeyTable

_PKEYS_A_BLOCK = 32
_LOW, _HIGH = 1, 3  # parts of VL arbitration that a port with at most 32 entries has


class PortTables:
    """Yields records of the tables that the manager has set."""

    def __init__(self, database: SubnetDatabase, reports: Reports) -> None:
        self.database = database
        self.reports = reports
        self.records: dict[int, Callable[[Attribute], Iterator[Attribute]]] = {
            RecordId.SL_TO_VL: self._sl_to_vl,
            RecordId.VL_ARBITRATION: self._arbitration,
            RecordId.PKEY_TABLE: self._pkeys,
            RecordId.GUID_INFO: self._guids,
            RecordId.MULTICAST_FORWARDING: self._multicast,
            RecordId.INFORM_INFO_RECORD: self._subscriptions,
        }

    def _linked(self) -> Iterator[tuple[int, Port]]:
        """(LID, port) of every port with a link."""
        for node in self.database.subnet.nodes.values():
            for port in node.ports.values():
                if port.peer is not None:
                    yield (node.end if node.is_switch else port).info.lid, port

    def _sl_to_vl(self, asked: Attribute) -> Iterator[Attribute]:
        if not self.database.settings.qos:
            return
        for lid, port in self._linked():
            table = self.database.settings.sl_to_vl_bytes(port.info.operational_vls)
            if not port.node.is_switch:
                yield sa.SlToVlRecord(lid=lid, table=table)
                continue
            for into, other in port.node.ports.items():
                if into != port.number and (into == 0 or other.peer is not None):
                    yield sa.SlToVlRecord(lid=lid, into=into, out=port.number, table=table)

    def _arbitration(self, asked: Attribute) -> Iterator[Attribute]:
        if not self.database.settings.qos:
            return
        for lid, port in self._linked():
            info = port.info
            for block, entries in ((_LOW, info.vl_arb_low_cap), (_HIGH, info.vl_arb_high_cap)):
                if entries:
                    table = self.database.settings.arbitration_bytes(
                        high=block == _HIGH, entries=entries, operational_vls=info.operational_vls
                    )
                    yield sa.VlArbitrationRecord(lid=lid, port_num=port.number, block=block, table=table)

    def _pkeys(self, asked: Attribute) -> Iterator[Attribute]:
        for port in self.database.ends():
            keys = self.database.settings.pkeys_of(port_guid(port))[:_PKEYS_A_BLOCK]
            table = PKeyTable(pkeys=(*keys, *[0] * (_PKEYS_A_BLOCK - len(keys)))).encode()
            yield sa.PKeyTableRecord(lid=port.info.lid, port_num=port.number, table=table)

    def _guids(self, asked: Attribute) -> Iterator[Attribute]:
        for port in self.database.ends():
            if port.info.guid_cap:
                table = GuidInfo(guids=(port_guid(port), *[0] * 7)).encode()
                yield sa.GuidInfoRecord(lid=port.info.lid, table=table)

    def _multicast(self, asked: Attribute) -> Iterator[Attribute]:
        nodes = self.database.subnet.nodes
        for (guid, block, position), table in sorted(self.database.mft.items()):
            if guid in nodes and any(table):
                lid = nodes[guid].end.info.lid
                yield sa.MulticastForwardingRecord(lid=lid, position=position, block=block, table=table)

    def _subscriptions(self, asked: Attribute) -> Iterator[Attribute]:
        prefix = self.database.settings.gid_prefix << 64
        for enum, held in enumerate(self.reports.subscriptions):
            port = self.database.by_lid(held.lid)
            gid = prefix | port_guid(port) if port is not None else 0
            yield sa.InformInfoRecord(subscriber_gid=gid, enum=enum, inform_info=held.info.encode())
