"""Subnet administration: the manager answers what it knows (IBTA volume 1, chapter 15).

Records: NodeRecord, PortInfoRecord, SwitchInfoRecord, LinearForwardingTableRecord, SMInfoRecord, LinkRecord,
PathRecord, MCMemberRecord, ServiceRecord; InformInfo to subscribe to reports. Tables go by RMPP.

Left out: MultiPathRecord, TraceRecord, GUIDInfoRecord and the tables of P_Keys, lanes and multicast as records.
The trust of SM_Key (some components are for trusted clients only) is not enforced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.subnet.agents.network import Frame
from fabrictwin.subnet.manager import multicast
from fabrictwin.subnet.manager.discovery import Node
from fabrictwin.subnet.manager.matching import LIFE_TIME, MOST_RECORDS, Matcher, Refusal, satisfies, subscribed
from fabrictwin.subnet.manager.paths import Paths
from fabrictwin.subnet.manager.tables import port_guid
from fabrictwin.subnet.rmpp import RETRIES, Sender, segments
from fabrictwin.subnet.rmpp import Kind as RmppKind
from fabrictwin.subnet.wire import notice, sa
from fabrictwin.subnet.wire.fields import Attribute, MadError
from fabrictwin.subnet.wire.header import Method, SaMad, SaStatus, Status
from fabrictwin.subnet.wire.perf import ClassPortInfo
from fabrictwin.subnet.wire.sa import RecordId, Selector

if TYPE_CHECKING:
    from fabrictwin.subnet.manager.manager import SubnetManager

PS_PER_S = 10**12
REPORT_TIMEOUT_PS = PS_PER_S
REPORT_RETRIES = 3
FOREVER_S = 0xFFFFFFFF
_OPTIONAL = 1 << 1 | 1 << 2 | 1 << 3  # ClassPortInfo: InformInfo from any trap, optional records, UD multicast


@dataclass
class Subscription:
    lid: int
    qpn: int
    info: notice.InformInfo


@dataclass
class Service:
    record: sa.ServiceRecord
    expires_ps: int


@dataclass
class _Report:
    """A report that waits to be confirmed."""

    frame: Frame
    subscription: Subscription
    due_ps: int
    tries: int = 0


class Administration:
    """Answers queries from what the manager holds. No I/O: frames in, frames out."""

    def __init__(self, manager: SubnetManager) -> None:
        self.manager = manager
        self._paths = Paths(manager)
        self.groups: dict[int, multicast.Group] = {}
        self.services: dict[tuple[int, int, int], Service] = {}
        self.subscriptions: list[Subscription] = []
        self.queries = 0
        self._senders: dict[tuple[int, int], tuple[Sender, Frame]] = {}
        self._reports: dict[int, _Report] = {}
        self._tid = 0
        self.rmpp_retries = RETRIES
        self.tree_changed = False
        self._tables: dict[int, Callable[[Attribute], Iterator[Attribute]]] = {
            RecordId.NODE: self._node_records,
            RecordId.PORT_INFO: self._port_records,
            RecordId.SWITCH_INFO: self._switch_records,
            RecordId.LINEAR_FORWARDING: self._table_records,
            RecordId.SM_INFO: self._sm_records,
            RecordId.LINK: self._link_records,
            RecordId.SERVICE: self._service_records,
            RecordId.MC_MEMBER: self._member_records,
        }
        self._kinds: dict[int, type[Attribute]] = {kind.ID: kind for kind in sa.ATTRIBUTES}

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
            self._reports.pop(mad.tid & 0xFFFFFFFF, None)
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
            return _response(mad, data=self._subscribe(mad, frame).encode())
        if mad.attribute == RecordId.MC_MEMBER and mad.method in (Method.SET, Method.DELETE):
            member = self._join(mad) if mad.method == Method.SET else self._leave(mad)
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
        for tid, report in list(self._reports.items()):
            if now_ps < report.due_ps:
                continue
            if report.tries == REPORT_RETRIES:
                del self._reports[tid]
                continue
            report.tries += 1
            report.due_ps = now_ps + REPORT_TIMEOUT_PS
            out.append(report.frame)
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
        return self.manager.subnet.nodes.values()

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
        for node in self.manager.subnet.switches:
            if node.switch is not None:
                yield sa.SwitchInfoRecord(lid=node.end.info.lid, info=node.switch.encode())

    def _table_records(self, asked: Attribute) -> Iterator[Attribute]:
        for node in self.manager.subnet.switches:
            row = self.manager.programmer.lft.get(node.guid)
            if row is None:
                continue
            wide = np.full(-(-len(row) // 64) * 64, 255, np.uint8)
            wide[: len(row)] = row
            for block in range(len(wide) // 64):
                ports = wide[64 * block : 64 * block + 64].tobytes()
                yield sa.LinearForwardingRecord(lid=node.end.info.lid, block=block, ports=ports)

    def _sm_records(self, asked: Attribute) -> Iterator[Attribute]:
        own = self.manager.subnet.own
        yield sa.SmInfoRecord(lid=own.info.lid if own else 0, info=self.manager.election.sm_info().encode())
        for lid, info in self.manager.election.others.values():
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

    # -- multicast -----------------------------------------------------------------------------------------

    def standing_groups(self) -> None:
        """The IPoIB broadcast groups of the partitions that have one."""
        for partition in self.manager.settings.partitions:
            group = partition.broadcast
            mgid = multicast.broadcast_gid(partition.pkey, group.scope)
            if partition.ipoib and mgid not in self.groups:
                record = sa.McMemberRecord(
                    mgid=mgid,
                    qkey=group.qkey,
                    mlid=multicast.free_mlid(self.groups),
                    mtu_selector=Selector.EXACTLY,
                    mtu=group.mtu,
                    pkey=partition.pkey | 0x8000,
                    rate_selector=Selector.EXACTLY,
                    rate=group.rate,
                    packet_life_time_selector=Selector.EXACTLY,
                    packet_life_time=LIFE_TIME,
                    sl=group.sl,
                    tclass=group.traffic_class,
                    flow_label=group.flow_label,
                    scope=group.scope,
                    join_state=multicast.FULL_MEMBER,
                )
                self.groups[mgid] = multicast.Group(record, standing=True)

    def _member_records(self, asked: Attribute) -> Iterator[Attribute]:
        for group in self.groups.values():
            if not group.members:
                yield replace(group.record, port_gid=0)
            for gid, state in group.members.items():
                yield replace(group.record, port_gid=gid, join_state=state)

    def _join(self, mad: SaMad) -> sa.McMemberRecord:
        asked = sa.McMemberRecord.decode(mad.data)
        wanted = set(sa.components(sa.McMemberRecord, mad.component_mask))
        if not {"port_gid", "join_state"} <= wanted or not asked.join_state:
            raise Refusal(SaStatus.INSUFFICIENT_COMPONENTS)
        guid = asked.port_gid & 0xFFFFFFFFFFFFFFFF
        if guid not in self.manager.by_guid:
            raise Refusal(SaStatus.INVALID_GID)
        group = self.groups.get(asked.mgid)
        if group is None:
            group = self._create(asked, wanted)
        for name in ("pkey", "qkey", "mlid"):
            if name in wanted and getattr(asked, name) != getattr(group.record, name):
                raise Refusal(SaStatus.REQUEST_INVALID)
        for name in ("mtu", "rate"):
            if name in wanted and not satisfies(asked, group.record, name):
                raise Refusal(SaStatus.REQUEST_INVALID)
        state = group.members.get(asked.port_gid, 0) | asked.join_state
        group.members[asked.port_gid] = state
        self.tree_changed = True
        return replace(group.record, port_gid=asked.port_gid, join_state=state)

    def _create(self, asked: sa.McMemberRecord, wanted: set[str]) -> multicast.Group:
        if not asked.join_state & multicast.FULL_MEMBER:
            raise Refusal(SaStatus.REQUEST_INVALID)  # only a full member makes a group
        if not {"qkey", "pkey", "sl", "flow_label", "tclass"} <= wanted:
            raise Refusal(SaStatus.INSUFFICIENT_COMPONENTS)
        mgid = asked.mgid
        mlid = multicast.free_mlid(self.groups)
        if not mlid:
            raise Refusal(SaStatus.NO_RESOURCES)
        if "mgid" not in wanted or not mgid:
            mgid = 0xFF12_A01B << 96 | 0xFE80 << 80 | mlid  # transient, link-local, one of the manager's
        elif mgid >> 120 != 0xFF:
            raise Refusal(SaStatus.REQUEST_INVALID)
        record = replace(
            asked,
            mgid=mgid,
            mlid=mlid,
            mtu_selector=Selector.EXACTLY,
            mtu=asked.mtu if "mtu" in wanted else 4,
            rate_selector=Selector.EXACTLY,
            rate=asked.rate if "rate" in wanted else 3,
            packet_life_time_selector=Selector.EXACTLY,
            packet_life_time=LIFE_TIME,
        )
        self.groups[mgid] = group = multicast.Group(record)
        self.tell(notice.Trap.MULTICAST_GROUP_CREATED, mgid)
        return group

    def _leave(self, mad: SaMad) -> sa.McMemberRecord:
        asked = sa.McMemberRecord.decode(mad.data)
        group = self.groups.get(asked.mgid)
        if group is None or asked.port_gid not in group.members:
            raise Refusal(SaStatus.REQUEST_INVALID)
        held = group.members[asked.port_gid]
        left = held & ~asked.join_state
        if left == held:
            raise Refusal(SaStatus.REQUEST_INVALID)
        record = replace(group.record, port_gid=asked.port_gid, join_state=left)
        if left:
            group.members[asked.port_gid] = left
        else:
            self._remove_member(group, asked.port_gid)
        return record

    def _remove_member(self, group: multicast.Group, gid: int) -> None:
        del group.members[gid]
        self.tree_changed = True
        if not any(state & multicast.FULL_MEMBER for state in group.members.values()) and not group.standing:
            del self.groups[group.record.mgid]
            self.tell(notice.Trap.MULTICAST_GROUP_DELETED, group.record.mgid)

    def drop_members(self, guid: int) -> None:
        """A port is gone, and its memberships and subscriptions with it."""
        for group in list(self.groups.values()):
            for gid in [gid for gid in group.members if gid & 0xFFFFFFFFFFFFFFFF == guid]:
                self._remove_member(group, gid)

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

    # -- reports -------------------------------------------------------------------------------------------

    def _subscribe(self, mad: SaMad, frame: Frame) -> notice.InformInfo:
        info = notice.InformInfo.decode(mad.data)
        mine = [
            s
            for s in self.subscriptions
            if s.lid == frame.slid and replace(s.info, subscribe=info.subscribe) == info
        ]
        if info.subscribe == 1:
            if not mine:
                self.subscriptions.append(Subscription(frame.slid, info.qpn or frame.sqp, info))
        else:
            if not mine:
                raise Refusal(SaStatus.REQUEST_INVALID)
            self.subscriptions = [s for s in self.subscriptions if s not in mine]
        return info

    def tell(self, trap: int, gid: int) -> None:
        """Report 64 to 67: a port or a group came or went."""
        own = self.manager.subnet.own
        told = notice.Notice(
            type=notice.NoticeType.SUBNET_MANAGEMENT,
            producer_type=notice.Producer.CLASS_MANAGER,
            trap_number=trap,
            issuer_lid=own.info.lid if own else 0,
            details=notice.GidDetails(gid=gid).encode(),
        )
        self.report(told, port_guid(own) if own else 0)

    def report(self, told: notice.Notice, issuer_guid: int) -> None:
        """Pass a notice on to who subscribed to its like."""
        manager = self.manager
        body = notice.NoticeReport(
            **{name: getattr(told, name) for name in notice.Notice.names()},
            issuer_gid=manager.settings.gid_prefix << 64 | issuer_guid,
        )
        for subscription in self.subscriptions:
            if not subscribed(subscription.info, told):
                continue
            self._tid += 1
            mad = SaMad(
                method=Method.REPORT,
                tid=self._tid,
                attribute=RecordId.NOTICE,
                attribute_offset=10,
                data=body.encode(),
            )
            own = manager.subnet.own
            frame = Frame(subscription.lid, own.info.lid if own else 0, subscription.qpn, 1, mad.encode())
            self._reports[self._tid] = _Report(frame, subscription, 0)


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
