"""Path records: what the forwarding tables do between ports (IBTA volume 1, 15.2.5.16 and 15.2.5.21).

Which pairs of LIDs are answered, in which order, and what becomes of a demand that a path exceeds, is as in OpenSM
(osm_sa_path_record.c, osm_sa_multipath_record.c). Left out: QoS policies, paths through routers, multicast
destinations, service levels that lead to lane 15.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.manager.administration.matching import (
    LIFE_TIME,
    MOST_RECORDS,
    Refusal,
    adjusted,
    link_rate_bps,
)
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.manager.sweep.discovery import Port
from fabrictwin.subnet.manager.sweep.table_computation import port_guid
from fabrictwin.subnet.wire import link_encodings as speeds
from fabrictwin.subnet.wire import sa
from fabrictwin.subnet.wire.fields import Attribute
from fabrictwin.subnet.wire.header import SaStatus
from fabrictwin.subnet.wire.sa import Selector

MOST_PATHS = 127
SHARED = 2  # preference of a path that shares an end's LID with one of preference 0
APART = 0
FULL = 0x8000

Ends = list[tuple[Port, int]]  # ports, and the LID asked for as a distance from the first; NONE: any of the port


class Paths:
    """Answers queries for paths from the subnet database."""

    def __init__(self, database: SubnetDatabase) -> None:
        self.database = database

    def query(self, asked: sa.PathRecord, mask: int, *, single: bool = False) -> Iterable[Attribute]:
        """PathRecords between the ports that are meant; of each pair one where a `single` one is asked for."""
        wanted = set(sa.components(sa.PathRecord, mask))
        sources = self._ends(asked.sgid if "sgid" in wanted else 0, asked.slid if "slid" in wanted else 0)
        targets = self._ends(asked.dgid if "dgid" in wanted else 0, asked.dlid if "dlid" in wanted else 0)
        each = 1 << self.database.settings.lmc
        if len(sources) * len(targets) * each > MOST_RECORDS:
            raise Refusal(SaStatus.NO_RESOURCES)
        most = 1 if single else asked.num_path if "num_path" in wanted else MOST_RECORDS
        found: list[Attribute] = []
        for source in sources:
            for target in targets:
                found += self._between(source, target, asked, wanted, most)
        return found

    def several(self, asked: sa.MultiPathRecord, mask: int) -> list[Attribute]:
        """PathRecords from some ports to others, as a MultiPathRecord asks. Raises Refusal for what it lacks."""
        wanted = set(sa.components(sa.MultiPathRecord, mask))
        if not {"sgid_count", "dgid_count"} <= wanted or len(wanted & {"service_id_high", "service_id_low"}) == 1:
            raise Refusal(SaStatus.INSUFFICIENT_COMPONENTS)
        if {"rate", "rate_selector"} <= wanted and asked.rate not in speeds.RATES:
            raise Refusal(SaStatus.REQUEST_INVALID)
        if {"mtu", "mtu_selector"} <= wanted and not 1 <= asked.mtu <= 5:
            raise Refusal(SaStatus.REQUEST_INVALID)
        first = min(asked.sgid_count, sa.MOST_GIDS)
        last = min(first + asked.dgid_count, sa.MOST_GIDS)
        sources = [self._port(gid) for gid in asked.gids[:first]]
        targets = [self._port(gid) for gid in asked.gids[first:last]]
        if not sources or not targets:
            raise Refusal(SaStatus.REQUEST_INVALID)
        if len(sources) == len(targets) == asked.num_path == 2:
            return self._diagonal(sources, targets, asked, wanted)
        most = asked.num_path if "num_path" in wanted else MOST_PATHS
        found: list[Attribute] = []
        for source in sources:
            for target in targets:
                if len(found) < most:
                    found += self._between((source, NONE), (target, NONE), asked, wanted, most - len(found))
        return found

    def _port(self, gid: int) -> Port:
        """The port with a GID. Raises Refusal."""
        if gid >> 64 not in (self.database.settings.gid_prefix, 0xFE80 << 48):
            raise Refusal(SaStatus.INVALID_GID)
        port = self.database.by_guid.get(gid & 0xFFFFFFFFFFFFFFFF)
        if port is None:
            raise Refusal(SaStatus.INVALID_GID)
        return port

    def _diagonal(
        self, sources: list[Port], targets: list[Port], asked: sa.MultiPathRecord, wanted: set[str]
    ) -> list[Attribute]:
        """Two paths between two ports and two others that have no end in common, for automatic path migration.

        They start at LIDs that a hash of the first ports' LIDs (as the wire has them, read by a little-endian
        machine) names, one LID apart, so that they part in a tree.
        """
        a, b = (sorted(ports, key=self._wire_guid) for ports in (sources, targets))
        lmc = self.database.settings.lmc
        low, high = sorted(int.from_bytes(ports[0].info.lid.to_bytes(2, "big"), "little") for ports in (a, b))
        offset = (low >> lmc << 4 | high >> lmc) % 103
        found = [
            [self._from_offset(source, target, offset + i, asked, wanted) for target in b]
            for i, source in enumerate(a)
        ]
        falling, rising = (found[0][0], found[1][1]), (found[0][1], found[1][0])
        least = [min((hops for _, hops in filter(None, pair)), default=0) for pair in (falling, rising)]
        chosen = falling if least[0] <= least[1] else rising
        return [record for record, _ in filter(None, chosen)]

    @staticmethod
    def _wire_guid(port: Port) -> int:
        """A GUID as OpenSM compares them: its bytes in the order of the wire, read by a little-endian machine."""
        return int.from_bytes(port_guid(port).to_bytes(8, "big"), "little")

    def _from_offset(
        self, source: Port, target: Port, offset: int, asked: sa.MultiPathRecord, wanted: set[str]
    ) -> tuple[sa.PathRecord, int] | None:
        """(path, links) by the first pair of LIDs that does, from an offset on, and around."""
        width = 1 << min(source.info.lmc, target.info.lmc)
        for k in range(width):
            slid = (offset + k) % (1 << source.info.lmc)
            dlid = (offset + k) % (1 << target.info.lmc)
            record = self._path(source, target, slid, dlid, asked, wanted)
            if record is not None:
                _, _, hops = self._walk(source, target, dlid) or (0, 0, 0)
                return record, hops
        return None

    def _between(
        self,
        source: tuple[Port, int],
        target: tuple[Port, int],
        asked: sa.PathRecord | sa.MultiPathRecord,
        wanted: set[str],
        most: int,
    ) -> list[sa.PathRecord]:
        """At most so many paths between two ports: first those that share no LID, then the others."""
        found: list[sa.PathRecord] = []
        for slid, dlid, preference in _lid_pairs(source, target):
            if len(found) >= most:
                break
            record = self._path(source[0], target[0], slid, dlid, asked, wanted)
            if record is not None:
                found.append(replace(record, preference=preference))
        return found

    def _ends(self, gid: int, lid: int) -> Ends:
        """The ports meant by a GID, a LID or both."""
        database = self.database
        if gid:
            if gid >> 64 not in (database.settings.gid_prefix, 0xFE80 << 48):
                raise Refusal(SaStatus.INVALID_GID)
            port = database.by_guid.get(gid & 0xFFFFFFFFFFFFFFFF)
            if port is None or (lid and database.by_lid(lid) is not port):
                return []
            return [(port, lid - port.info.lid if lid else NONE)]
        if lid:
            port = database.by_lid(lid)
            return [] if port is None else [(port, lid - port.info.lid)]
        return [(port, NONE) for port in database.by_guid.values()]

    def _walk(self, source: Port, target: Port, offset: int) -> tuple[int, int, int] | None:
        """(MTU code, rate in bit/s, links) of the way that the tables lead; None where they do not arrive."""
        database = self.database
        lid = target.info.lid + offset
        mtu, rate, hops = min(source.info.mtu_cap, database.settings.mtu_code), 1 << 62, 0
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
        return mtu, rate if hops else link_rate_bps(source.info), hops

    def _path(
        self,
        source: Port,
        target: Port,
        slid: int,
        dlid: int,
        asked: sa.PathRecord | sa.MultiPathRecord,
        wanted: set[str],
    ) -> sa.PathRecord | None:
        """The path from the LID that far from the source's first to the target's; None where none does."""
        database, settings = self.database, self.database.settings
        walked = self._walk(source, target, dlid)
        pkey = database.common_pkey(port_guid(source), port_guid(target))
        if "pkey" in wanted:
            pkey = asked.pkey if database.shares_pkey(port_guid(source), port_guid(target), asked.pkey) else 0
        if walked is None or not pkey:
            return None
        width, speed = speeds.link_of(walked[1])
        has = {"mtu": walked[0], "rate": speeds.rate_code(width, speed)}
        has["packet_life_time"] = LIFE_TIME if source is not target else 0
        for name in has:
            if {name, f"{name}_selector"} <= wanted:
                value = adjusted(asked, name, has[name])
                if value is None:
                    return None
                has[name] = value
        lid = target.info.lid + dlid
        level = database.service_level(source, lid)
        if isinstance(asked, sa.MultiPathRecord):  # OpenSM leaves routing engines out of these
            level = asked.sl if "sl" in wanted else 0
        elif "sl" in wanted and asked.sl != level and database.levels_are_given:
            return None
        elif "sl" in wanted:
            level = asked.sl
        reversible = self._walk(target, source, slid) is not None
        if "reversible" in wanted and asked.reversible and not reversible:
            return None
        raw = "raw_traffic" in wanted and asked.raw_traffic
        return sa.PathRecord(
            dgid=settings.gid_prefix << 64 | port_guid(target),
            sgid=settings.gid_prefix << 64 | port_guid(source),
            dlid=lid,
            slid=source.info.lid + slid,
            hop_limit=0,
            reversible=int(reversible),
            num_path=0,
            pkey=0 if raw else pkey,
            sl=level,
            mtu_selector=Selector.EXACTLY,
            mtu=has["mtu"],
            rate_selector=Selector.EXACTLY,
            rate=has["rate"],
            packet_life_time_selector=Selector.EXACTLY,
            packet_life_time=has["packet_life_time"] if source is not target else 0,
        )


def _lid_pairs(source: tuple[Port, int], target: tuple[Port, int]) -> Iterator[tuple[int, int, int]]:
    """(source's LID, target's, preference) as distances from their first: LIDs of equal number, then all others.

    Of the others OpenSM leaves out those whose distances are equal, whatever it has answered.
    """
    first, offsets = [], []
    for port, only in (source, target):
        first.append(0 if only == NONE else only)
        offsets.append(range(1 << port.info.lmc) if only == NONE else range(1))
    for k in range(min(map(len, offsets))):
        yield first[0] + k, first[1] + k, APART
    for i in offsets[0]:
        for j in offsets[1]:
            if i != j:
                yield first[0] + i, first[1] + j, SHARED
