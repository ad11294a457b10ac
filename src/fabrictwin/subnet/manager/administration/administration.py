"""Subnet administration: the manager answers what it knows (IBTA volume 1, chapter 15).

Records: NodeRecord, PortInfoRecord, SwitchInfoRecord, LinearForwardingTableRecord, SMInfoRecord, LinkRecord,
PathRecord, MultiPathRecord, MCMemberRecord, ServiceRecord, those of `port_tables`; InformInfo to subscribe to
reports. Tables go by RMPP.

Left out: TraceRecord, which OpenSM refuses too; a MultiPathRecord of several segments.
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
from fabrictwin.subnet.wire.rmpp import RETRIES, Flag, Sender, segments
from fabrictwin.subnet.wire.rmpp import Kind as RmppKind
from fabrictwin.subnet.wire.sa import RecordId
from fabrictwin.subnet.wire.smp import PortInfo, PortState

FOREVER_S = 0xFFFFFFFF
# ClassPortInfo of the class, as OpenSM numbers its bits: notices, multicast, MultiPathRecord, capability masks
# matched by their bits; MulticastFDBTop, all of PortInfo, extended speeds, width 2x, HDR, NDR, and where it is
# programmed quality of service
_CAPABILITIES = 1 << 1 | 1 << 9 | 1 << 10 | 1 << 13
_CAPABILITIES2 = 1 << 3 | 1 << 6 | 1 << 7 | 1 << 13 | 1 << 15 | 1 << 17
_QOS = 1 << 1
_WELL_KNOWN_QKEY = 0x80010000
_RESPONSE_TIME = 16


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
                *(RecordId.CLASS_PORT_INFO, RecordId.PATH, RecordId.MULTI_PATH, RecordId.INFORM_INFO),
            ):
                raise Refusal(Status.BAD_ATTRIBUTE)
            if mad.attribute == RecordId.MULTI_PATH:
                self._check_multi_path(mad)
            if mad.method in (Method.GET_TABLE, Method.GET_MULTI):
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

    @staticmethod
    def _check_multi_path(mad: SaMad) -> None:
        """Raise Refusal unless the question is sent as RMPP, and by the method for it."""
        if not mad.rmpp_flags & Flag.ACTIVE:
            raise Refusal(SaStatus.REQUEST_INVALID)
        if mad.method != Method.GET_MULTI:
            raise Refusal(Status.BAD_ATTRIBUTE)

    def _single(self, mad: SaMad, frame: Frame, now_ps: int) -> SaMad:
        if mad.attribute == RecordId.CLASS_PORT_INFO and mad.method == Method.GET:
            info = ClassPortInfo(
                class_version=2,
                capability_mask=_CAPABILITIES,
                capability_mask2=_CAPABILITIES2 | (_QOS if self.database.settings.qos else 0),
                resp_time_value=_RESPONSE_TIME,
                redirect_qp=1,
                redirect_qkey=_WELL_KNOWN_QKEY,
                trap_qkey=_WELL_KNOWN_QKEY,
            )
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
            path = sa.PathRecord.decode(mad.data)
            return self._paths.query(path, mad.component_mask, single=mad.method == Method.GET)
        if mad.attribute == RecordId.MULTI_PATH:
            return self._paths.several(sa.MultiPathRecord.decode(mad.data), mad.component_mask)
        if mad.attribute not in self._tables:
            raise Refusal(Status.BAD_METHOD)
        trusted = mad.sm_key == self.database.settings.sm_key
        if (mad.sm_key and not trusted) or (mad.attribute == RecordId.PKEY_TABLE and not trusted):
            raise Refusal(SaStatus.REQUEST_INVALID)  # P_Keys are for who knows the manager's key (15.4.1.2)
        if mad.attribute == RecordId.MC_MEMBER and not trusted:
            asked = self._kinds[mad.attribute].decode(mad.data)
            return self._matching(mad, self.groups.summaries(asked, mad.component_mask))
        kind = self._kinds[mad.attribute]
        # a query of a record longer than a datagram's data would need RMPP on its way here
        asked = kind.decode(mad.data)
        return self._matching(mad, self._tables[mad.attribute](asked))

    def _matching(self, mad: SaMad, records: Iterable[Attribute]) -> list[Attribute]:
        """Return the records that a query wants. Raises Refusal where there are too many to send."""
        kind = self._kinds[mad.attribute]
        matcher = Matcher(kind, kind.decode(mad.data), mad.component_mask)
        found: list[Attribute] = []
        for record in records:
            if matcher.matches(record):
                found.append(self._as_answered(record))
                if len(found) > MOST_RECORDS:
                    raise Refusal(SaStatus.NO_RESOURCES)
        return found

    def _as_answered(self, record: Attribute) -> Attribute:
        """Return a record as it is sent: the ports of an adapter's only SL to VL map are 0."""
        if isinstance(record, sa.SlToVlRecord):
            port = self.database.by_lid(record.lid)
            if port is not None and not port.node.is_switch:
                return replace(record, into=0, out=0)
        return record

    def _nodes(self) -> Iterable[Node]:
        return self.database.in_order()

    def _node_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self._nodes():
            for port in node.ends():
                info = replace(node.info, local_port_num=port.number, port_guid=port_guid(port))
                yield sa.NodeRecord(lid=port.info.lid, info=info.encode(), description=node.description)

    def _port_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self._nodes():
            for port in node.ports.values():
                lid = (node.end if node.is_switch else port).info.lid
                info = port.info
                if info.port_state == PortState.DOWN:  # all else is undefined then
                    info = PortInfo(port_state=PortState.DOWN, port_physical_state=info.port_physical_state)
                yield sa.PortInfoRecord(endport_lid=lid, port_num=port.number, info=info.encode())

    def _switch_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self._nodes():
            if node.switch is not None:
                yield sa.SwitchInfoRecord(lid=node.end.info.lid, info=node.switch.encode())

    def _table_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self._nodes():
            row = self.database.lft.get(node.guid)
            if row is None:
                continue
            wide = np.full(-(-len(row) // 64) * 64, 255, np.uint8)
            wide[: len(row)] = row
            for block in range(len(wide) // 64):
                ports = wide[64 * block : 64 * block + 64].tobytes()
                yield sa.LinearForwardingRecord(lid=node.end.info.lid, block=block, ports=ports)

    def _sm_records(self, asked: Attribute) -> Iterator[Attribute]:
        yield sa.SmInfoRecord(lid=self.database.own_lid, info=replace(self.election.sm_info(), sm_key=0).encode())
        for lid, info in self.election.others.values():
            yield sa.SmInfoRecord(lid=lid, info=replace(info, sm_key=0).encode())

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
    multiple = mad.attribute == RecordId.MULTI_PATH  # PathRecords answer it (o15-0.2.7)
    return replace(
        mad,
        method=mad.method | 0x80,
        attribute=RecordId.PATH if multiple else mad.attribute,
        status=int(status),
        rmpp_version=1,
        rmpp_type=0,
        rmpp_flags=0,
        rmpp_status=0,
        rmpp_data1=0,
        rmpp_data2=0,
        sm_key=0,
        attribute_offset=offset,
        data=data or mad.data,
    )
