"""Records of what ports and switches hold in tables: lanes, arbitration, P_Keys, GUIDs, multicast.

The manager answers what it set, as OpenSM does. Where it leaves lanes and arbitration alone (`qos` off) it knows
none. A port has the GUIDs of its port alone: none was set beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fabrictwin.subnet.manager.administration.subscriptions import Reports
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.manager.settings.manager_settings import DEFAULT_PKEY, FULL
from fabrictwin.subnet.manager.sweep.discovery import Port
from fabrictwin.subnet.manager.sweep.programming import is_managed_end
from fabrictwin.subnet.manager.sweep.table_computation import port_guid
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.fields import Attribute
from fabrictwin.subnet.wire.sa import RecordId
from fabrictwin.subnet.wire.smp import GuidInfo, PKeyTable, SlToVl

_PKEYS_A_BLOCK = 32
_GUIDS_A_BLOCK = 8
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

    def _tables_of(self) -> Iterator[tuple[int, Port]]:
        """(LID, port) of every port of a switch, and of every adapter's port with a LID."""
        for node in self.database.in_order():
            for port in node.ports.values() if node.is_switch else node.ends():
                yield (node.end if node.is_switch else port).info.lid, port

    def _is_set(self, port: Port) -> bool:
        """Return whether the manager has set a port's lanes: not where nothing is plugged in."""
        return self.database.settings.qos and (port.peer is not None or is_managed_end(port))

    def _sl_to_vl(self, asked: Attribute) -> Iterator[Attribute]:
        """One table for an adapter, whatever ports are asked for; of a switch those from each port to each."""
        if not self.database.settings.qos:
            return
        assert isinstance(asked, sa.SlToVlRecord)
        for lid, port in self._tables_of():
            vls = port.info.operational_vls
            table = self.database.settings.sl_to_vl_bytes(vls) if self._is_set(port) else bytes(SlToVl.SIZE)
            if not port.node.is_switch:
                yield sa.SlToVlRecord(lid=lid, into=asked.into, out=asked.out, table=table)
                continue
            for into in port.node.ports:
                yield sa.SlToVlRecord(lid=lid, into=into, out=port.number, table=table)

    def _arbitration(self, asked: Attribute) -> Iterator[Attribute]:
        if not self.database.settings.qos:
            return
        assert isinstance(asked, sa.VlArbitrationRecord)
        for lid, port in self._tables_of():
            info = port.info
            for block in range(1, 5):
                entries = {_LOW: info.vl_arb_low_cap, _HIGH: info.vl_arb_high_cap}.get(block, 0)
                table = bytes(64)
                if entries and self._is_set(port):
                    table = self.database.settings.arbitration_bytes(
                        high=block == _HIGH, entries=entries, operational_vls=info.operational_vls
                    )
                number = port.number if port.node.is_switch else asked.port_num or port.number
                yield sa.VlArbitrationRecord(lid=lid, port_num=number, block=block, table=table)

    def _pkeys(self, asked: Attribute) -> Iterator[Attribute]:
        """Every block of every port that is an end or has a link."""
        for node in self.database.in_order():
            for port in node.ports.values():
                if port.number and port.peer is None:
                    continue
                keys = self._keys(port)[:_PKEYS_A_BLOCK]
                cap = node.info.partition_cap
                if port.number and node.switch is not None:
                    cap = node.switch.partition_enforcement_cap
                for block in range(max(1, -(-cap // _PKEYS_A_BLOCK))):
                    held = keys if block == 0 else ()
                    table = PKeyTable(pkeys=(*held, *[0] * (_PKEYS_A_BLOCK - len(held)))).encode()
                    yield sa.PKeyTableRecord(
                        lid=(node.end if node.is_switch else port).info.lid,
                        port_num=port.number,
                        block=block,
                        table=table,
                    )

    def _keys(self, port: Port) -> tuple[int, ...]:
        """Return the P_Keys of a port: as it powered on where the manager sets none, between switches."""
        settings = self.database.settings
        if port.number == 0 or not port.node.is_switch:
            return settings.pkeys_of(port_guid(port))
        assert port.peer is not None
        if settings.enforce_partitions and not port.peer.node.is_switch:
            return settings.pkeys_of(port_guid(port.peer))
        return (DEFAULT_PKEY | FULL,)

    def _guids(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self.database.in_order():
            for port in node.ends():
                for block in range(-(-port.info.guid_cap // _GUIDS_A_BLOCK)):
                    table = GuidInfo(guids=(0 if block else port_guid(port), *[0] * 7)).encode()
                    yield sa.GuidInfoRecord(lid=port.info.lid, block=block, table=table)

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
