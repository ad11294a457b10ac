"""Subnet administration: the manager answers what it knows (IBTA volume 1, chapter 15).

Records: NodeRecord, PortInfoRecord, SwitchInfoRecord, LinearForwardingTableRecord, SMInfoRecord, LinkRecord,
PathRecord, MCMemberRecord, ServiceRecord, those of `port_tables`; InformInfo to subscribe to reports. Tables go by
RMPP.

Left out: MultiPathRecord, TraceRecord.
The trust of SM_Key (some components are for trusted clients only) is not enforced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fabrictwin.base.units import PS_PER_S
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.manager.administration.group_membership import Groups
from fabrictwin.subnet.manager.administration.matching import MOST_RECORDS, Matcher, Refusal
from fabrictwin.subnet.manager.administration.path_records import Paths
from fabrictwin.subnet.manager.administration.port_tables import PortTables
from fabrictwin.subnet.manager.administration.subscriptions import Reports
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.manager.election import Election
from fabrictwin.subnet.manager.sweep.discovery import Node
from fabrictwin.subnet.manager.sweep.table_computation import port_guid
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.fields import Attribute, MadError
from fabrictwin.subnet.wire.header import Method, SaMad, SaStatus, Status
from fabrictwin.subnet.wire.pm import ClassPortInfo
from fabrictwin.subnet.wire.rmpp import RETRIES, Sender, segments
from fabrictwin.subnet.wire.rmpp import Kind as RmppKind
from fabrictwin.subnet.wire.sa import RecordId

FOREVER_S = 0xFFFFFFFF
_OPTIONAL = 1 << 1 | 1 << 2 | 1 << 3  # ClassPortInfo: InformInfo from any trap, optional records, UD multicast


@dataclass
class Service:
    record: sa.ServiceRecord
    expires_ps: int


class Administration:
    """Answers queries from the subnet database. No I/O: frames in, frames out."""

    def __init__(self, database: SubnetDatabase, election: Election) -> None:
        self.database, self.election = database, election
        self._paths = Paths(database)
        self.reports = Reports(database)
        self.groups = Groups(database, self.reports)
        self.services: dict[tuple[int, int, int], Service] = {}
        self.queries = 0
        self._senders: dict[tuple[int, int], tuple[Sender, Frame]] = {}
        self.rmpp_retries = RETRIES
        self._tables: dict[int, Callable[[Attribute], Iterator[Attribute]]] = {
            RecordId.NODE: self._node_records,
            RecordId.PORT_INFO: self._port_records,
            RecordId.SWITCH_INFO: self._switch_records,
            RecordId.LINEAR_FORWARDING: self._table_records,
            RecordId.SM_INFO: self._sm_records,
            RecordId.LINK: self._link_records,
            RecordId.SERVICE: self._service_records,
            RecordId.MC_MEMBER: self.groups.records,
            **PortTables(database, self.reports).records,
        }
        self._kinds: dict[int, type[Attribute]] = {kind.ID: kind for kind in sa.COMPONENTS}

    # -- datagrams -----------------------------------------------------------------------------------------

    def receive(self, frame: Frame, now_ps: int) -> list[Frame]:
        """Answers to a datagram of this class."""
        mad = SaMad.decode(frame.mad)
        key = (frame.slid, mad.tid)
        if mad.rmpp_type in (RmppKind.ACK, RmppKind.STOP, RmppKind.ABORT):
            held = self._senders.get(key)
            if held is None:
                return []
            sender, back = held
            out = [replace(back, mad=part.encode()) for part in sender.receive(mad, now_ps)]
            if sender.done:
                del self._senders[key]
            return out
        if mad.method == Method.REPORT_RESP:
            self.reports.confirm(mad.tid & 0xFFFFFFFF)
            return []
        if mad.method & 0x80:
            return []
        self.queries += 1
        back = Frame(frame.slid, frame.dlid, frame.sqp, frame.dqp, b"")
        try:
            if mad.attribute not in self._tables and mad.attribute not in (
                *(RecordId.CLASS_PORT_INFO, RecordId.PATH, RecordId.INFORM_INFO),
            ):
                raise Refusal(Status.BAD_ATTRIBUTE)
            if mad.method == Method.GET_TABLE:
                return self._answer_table(mad, back, key, now_ps)
            return [replace(back, mad=self._single(mad, frame, now_ps).encode())]
        except Refusal as refusal:
            status = refusal.status
        except MadError:
            status = int(SaStatus.REQUEST_INVALID)
        return [replace(back, mad=_response(mad, status=status).encode())]

    def _answer_table(self, mad: SaMad, back: Frame, key: tuple[int, int], now_ps: int) -> list[Frame]:
        if key in self._senders:
            return []  # the same question again, while the answer is on its way
        records = [sa.record_bytes(record) for record in self.query(mad)]
        head = _response(mad, offset=len(records[0]) // 8 if records else 0)
        sender = Sender(segments(head, b"".join(records)), retries=self.rmpp_retries)
        self._senders[key] = (sender, back)
        return [replace(back, mad=part.encode()) for part in sender.start(now_ps)]

    def _single(self, mad: SaMad, frame: Frame, now_ps: int) -> SaMad:
        if mad.attribute == RecordId.CLASS_PORT_INFO and mad.method == Method.GET:
            info = ClassPortInfo(class_version=2, capability_mask=_OPTIONAL, resp_time_value=18)
            return _response(mad, data=info.encode())
        if mad.attribute == RecordId.INFORM_INFO and mad.method == Method.SET:
            return _response(mad, data=self.reports.subscribe(mad, frame).encode())
        if mad.attribute == RecordId.MC_MEMBER and mad.method in (Method.SET, Method.DELETE):
            member = self.groups.join(mad) if mad.method == Method.SET else self.groups.leave(mad)
            return _response(mad, data=member.encode(), offset=7)
        if mad.attribute == RecordId.SERVICE and mad.method in (Method.SET, Method.DELETE):
            return _response(mad, data=self._service(mad, now_ps).encode(), offset=22)
        if mad.method != Method.GET:
            raise Refusal(Status.BAD_METHOD)
        found = []
        for record in self.query(mad):
            found.append(record)
            if len(found) > 1:
                raise Refusal(SaStatus.TOO_MANY_RECORDS)
        if not found:
            raise Refusal(SaStatus.NO_RECORDS)
        data = sa.record_bytes(found[0])
        return _response(mad, data=data, offset=len(data) // 8)

    def poll(self, now_ps: int) -> list[Frame]:
        """Segments and reports to repeat by now; services whose lease has ended go."""
        out: list[Frame] = []
        for key, (sender, back) in list(self._senders.items()):
            out += [replace(back, mad=part.encode()) for part in sender.poll(now_ps)]
            if sender.done:
                del self._senders[key]
        out += self.reports.poll(now_ps)
        self.services = {key: held for key, held in self.services.items() if held.expires_ps > now_ps}
        return out

    # -- queries -------------------------------------------------------------------------------------------

    def query(self, mad: SaMad) -> Iterable[Attribute]:
        """The records that match a query. Raises Refusal where there are too many to send."""
        if mad.attribute == RecordId.PATH:
            return self._paths.query(sa.PathRecord.decode(mad.data), mad.component_mask)
        if mad.attribute not in self._tables:
            raise Refusal(Status.BAD_METHOD)
        kind = self._kinds[mad.attribute]
        # a query of a record longer than a datagram's data would need RMPP on its way here
        asked = kind.decode(mad.data)
        matcher = Matcher(kind, asked, mad.component_mask)
        found: list[Attribute] = []
        for record in self._tables[mad.attribute](asked):
            if matcher.matches(record):
                found.append(record)
                if len(found) > MOST_RECORDS:
                    raise Refusal(SaStatus.NO_RESOURCES)
        return found

    def _nodes(self) -> Iterable[Node]:
        return self.database.subnet.nodes.values()

    def _node_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self._nodes():
            for port in node.ends():
                info = replace(node.info, local_port_num=port.number, port_guid=port_guid(port))
                yield sa.NodeRecord(lid=port.info.lid, info=info.encode(), description=node.description)

    def _port_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self._nodes():
            for port in node.ports.values():
                lid = (node.end if node.is_switch else port).info.lid
                yield sa.PortInfoRecord(endport_lid=lid, port_num=port.number, info=port.info.encode())

    def _switch_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self.database.subnet.switches:
            if node.switch is not None:
                yield sa.SwitchInfoRecord(lid=node.end.info.lid, info=node.switch.encode())

    def _table_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self.database.subnet.switches:
            row = self.database.lft.get(node.guid)
            if row is None:
                continue
            wide = np.full(-(-len(row) // 64) * 64, 255, np.uint8)
            wide[: len(row)] = row
            for block in range(len(wide) // 64):
                ports = wide[64 * block : 64 * block + 64].tobytes()
                yield sa.LinearForwardingRecord(lid=node.end.info.lid, block=block, ports=ports)

    def _sm_records(self, asked: Attribute) -> Iterator[Attribute]:
        yield sa.SmInfoRecord(lid=self.database.own_lid, info=self.election.sm_info().encode())
        for lid, info in self.election.others.values():
            yield sa.SmInfoRecord(lid=lid, info=info.encode())

    def _link_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self._nodes():
            for port in node.ports.values():
                if port.peer is not None:
                    yield sa.LinkRecord(
                        from_lid=(node.end if node.is_switch else port).info.lid,
                        from_port=port.number,
                        to_port=port.peer.number,
                        to_lid=(port.peer.node.end if port.peer.node.is_switch else port.peer).info.lid,
                    )

    # -- services ------------------------------------------------------------------------------------------

    def _service_records(self, asked: Attribute) -> Iterator[Attribute]:
        for held in self.services.values():
            yield held.record

    def _service(self, mad: SaMad, now_ps: int) -> sa.ServiceRecord:
        record = sa.ServiceRecord.decode(mad.data)
        key = (record.service_id, record.service_gid, record.pkey)
        if mad.method == Method.DELETE:
            if key not in self.services:
                raise Refusal(SaStatus.NO_RECORDS)
            return self.services.pop(key).record
        lease = record.lease_s if mad.component_mask >> 4 & 1 else FOREVER_S
        record.lease_s = lease
        expires = 1 << 62 if lease == FOREVER_S else now_ps + lease * PS_PER_S
        self.services[key] = Service(record, expires)
        return record


def _response(mad: SaMad, *, status: int = 0, data: bytes = b"", offset: int = 0) -> SaMad:
    return replace(
        mad,
        method=mad.method | 0x80,
        status=int(status),
        rmpp_version=1,
        rmpp_type=0,
        rmpp_flags=0,
        rmpp_status=0,
        rmpp_data1=0,
        rmpp_data2=0,
        attribute_offset=offset,
        data=data or mad.data,
    )
