"""Membership of multicast groups: joining, leaving, the permanent groups (IBTA volume 1, 15.2.5.17)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fabrictwin.subnet.manager.administration import multicast_trees as multicast
from fabrictwin.subnet.manager.administration.matching import LIFE_TIME, Refusal, satisfies
from fabrictwin.subnet.manager.administration.subscriptions import Reports
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.wire import notice, sa
from fabrictwin.subnet.wire.fields import Attribute
from fabrictwin.subnet.wire.header import SaMad, SaStatus
from fabrictwin.subnet.wire.sa import Selector


class Groups:
    """The multicast groups of a subnet; `tree_changed` says that switches no longer fit them."""

    def __init__(self, database: SubnetDatabase, reports: Reports) -> None:
        self.database = database
        self.reports = reports
        self.known: dict[int, multicast.Group] = {}  # by MGID
        self.tree_changed = False

    def add_broadcast(self) -> None:
        """Make the IPoIB broadcast groups of the partitions that have one."""
        for partition in self.database.settings.partitions:
            group = partition.broadcast
            mgid = multicast.broadcast_gid(partition.pkey, group.scope)
            if partition.ipoib and mgid not in self.known:
                record = sa.McMemberRecord(
                    mgid=mgid,
                    qkey=group.qkey,
                    mlid=multicast.free_mlid(self.known),
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
                self.known[mgid] = multicast.Group(record, permanent=True)

    def records(self, asked: Attribute) -> Iterator[Attribute]:
        """A record for every member."""
        for group in self.known.values():
            for gid, state in group.members.items():
                yield replace(group.record, port_gid=gid, join_state=state)

    def summaries(self, asked: Attribute, mask: int) -> Iterator[Attribute]:
        """A record for every group; for a port that is asked for, one for every group that it is in.

        Who does not know the manager's key is not told other members (15.2.5.17.1).
        """
        assert isinstance(asked, sa.McMemberRecord)
        of_port = "port_gid" in sa.components(sa.McMemberRecord, mask)
        for group in self.known.values():
            if not of_port:
                yield replace(group.record, port_gid=0, join_state=0)
            elif asked.port_gid in group.members:
                state = group.members[asked.port_gid]
                yield replace(group.record, port_gid=asked.port_gid, join_state=state)

    def join(self, mad: SaMad) -> sa.McMemberRecord:
        """Add a member, and the group where there is none yet. Raises Refusal."""
        asked = sa.McMemberRecord.decode(mad.data)
        wanted = set(sa.components(sa.McMemberRecord, mad.component_mask))
        if not {"port_gid", "join_state"} <= wanted or not asked.join_state:
            raise Refusal(SaStatus.INSUFFICIENT_COMPONENTS)
        guid = asked.port_gid & 0xFFFFFFFFFFFFFFFF
        if guid not in self.database.by_guid:
            raise Refusal(SaStatus.INVALID_GID)
        group = self.known.get(asked.mgid) if "mgid" in wanted else None
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
        mlid = multicast.free_mlid(self.known)
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
        self.known[mgid] = group = multicast.Group(record)
        self.reports.report_gid(notice.Trap.MULTICAST_GROUP_CREATED, mgid)
        return group

    def leave(self, mad: SaMad) -> sa.McMemberRecord:
        """Take join states away, and the member with the last of them. Raises Refusal."""
        asked = sa.McMemberRecord.decode(mad.data)
        group = self.known.get(asked.mgid)
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
        if not any(state & multicast.FULL_MEMBER for state in group.members.values()) and not group.permanent:
            del self.known[group.record.mgid]
            self.reports.report_gid(notice.Trap.MULTICAST_GROUP_DELETED, group.record.mgid)

    def drop(self, guid: int) -> None:
        """A port is gone, and its memberships and subscriptions with it."""
        for group in list(self.known.values()):
            for gid in [gid for gid in group.members if gid & 0xFFFFFFFFFFFFFFFF == guid]:
                self._remove_member(group, gid)
