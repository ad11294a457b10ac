"""Path records: what the forwarding tables do between two ports (IBTA volume 1, 15.2.5.16)."""

from __future__ import annotations

from collections.abc import Iterable

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.manager.administration.matching import (
    LIFE_TIME,
    MOST_RECORDS,
    Refusal,
    link_rate_bps,
    suits,
)
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.manager.sweep.discovery import Port
from fabrictwin.subnet.manager.sweep.table_computation import port_guid
from fabrictwin.subnet.wire import link_encodings as speeds
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.fields import Attribute
from fabrictwin.subnet.wire.header import SaStatus
from fabrictwin.subnet.wire.sa import Selector


class Paths:
    """Answers queries for paths from the subnet database."""

    def __init__(self, database: SubnetDatabase) -> None:
        self.database = database

    def query(self, asked: sa.PathRecord, mask: int) -> Iterable[Attribute]:
        wanted = set(sa.components(sa.PathRecord, mask))
        sources = self._ends(asked.sgid if "sgid" in wanted else 0, asked.slid if "slid" in wanted else 0)
        targets = self._ends(asked.dgid if "dgid" in wanted else 0, asked.dlid if "dlid" in wanted else 0)
        each = 1 << self.database.settings.lmc
        if len(sources) * len(targets) * each > MOST_RECORDS:
            raise Refusal(SaStatus.NO_RESOURCES)
        at_most = asked.num_path if "num_path" in wanted else 127
        found: list[Attribute] = []
        for source, _ in sources:
            for target, offset in targets:
                offsets = [offset] if offset != NONE else range(1 << target.info.lmc)
                count = 0
                for k in offsets:
                    record = self._path(source, target, k)
                    if record is None or not suits(asked, record, wanted):
                        continue
                    found.append(record)
                    count += 1
                    if count >= at_most:
                        break
        return found

    def _ends(self, gid: int, lid: int) -> list[tuple[Port, int]]:
        """(port, offset of the LID asked for) of the ports meant; NONE is any LID of the port."""
        database = self.database
        if gid:
            if gid >> 64 not in (database.settings.gid_prefix, 0xFE80 << 48):
                raise Refusal(SaStatus.INVALID_GID)
            port = database.by_guid.get(gid & 0xFFFFFFFFFFFFFFFF)
            return [] if port is None else [(port, NONE)]
        if lid:
            port = database.by_lid(lid)
            return [] if port is None else [(port, lid - port.info.lid)]
        return [(port, NONE) for port in database.by_guid.values()]

    def _path(self, source: Port, target: Port, offset: int) -> sa.PathRecord | None:
        """The path that the tables lead along; None where they do not arrive."""
        database, settings = self.database, self.database.settings
        lid = target.info.lid + offset
        pkey = database.common_pkey(port_guid(source), port_guid(target))
        if not pkey:
            return None
        mtu, rate, hops = min(source.info.mtu_cap, settings.mtu_code), 1 << 62, 0
        at = source
        while at.node is not target.node:
            if at.node.is_switch:
                row = database.lft.get(at.node.guid)
                out = 255 if row is None or lid >= len(row) else int(row[lid])
                port = at.node.ports.get(out) if 0 < out < 255 else None
            else:
                port = at
            if port is None or port.peer is None or hops > 64:
                return None
            mtu = min(mtu, port.info.neighbor_mtu)
            rate = min(rate, link_rate_bps(port.info))
            at = port.peer
            hops += 1
        width, speed = speeds.link_of(rate if hops else link_rate_bps(source.info))
        return sa.PathRecord(
            dgid=settings.gid_prefix << 64 | port_guid(target),
            sgid=settings.gid_prefix << 64 | port_guid(source),
            dlid=lid,
            slid=source.info.lid,
            hop_limit=0,
            reversible=1,
            num_path=0,
            pkey=pkey,
            sl=database.service_level(source, lid),
            mtu_selector=Selector.EXACTLY,
            mtu=mtu,
            rate_selector=Selector.EXACTLY,
            rate=speeds.rate_code(width, speed),
            packet_life_time_selector=Selector.EXACTLY,
            packet_life_time=LIFE_TIME if hops else 0,
        )
