"""SONiC's config_db.json as a switch.

A part of one (`qos.json`, `buffers.json`, as SONiC's templates make them) is taken too: its ports are those that
its rows name, and what other tables would say is not known. Values are strings in the database; numbers of JSON
are taken too. A reference may stand as SONiC writes it now (`AZURE`) or as it did before 2022
(`[DSCP_TO_TC_MAP|AZURE]`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.whole_numbers import read_json
from fabrictwin.configuration.model import switches as model
from fabrictwin.configuration.policy.chips import chip_of_platform
from fabrictwin.configuration.readers.problems import Problems

Tables = dict[str, dict[str, dict[str, Any]]]
MOST_BYTES = 2**40
MOST_PORTS = 1024
MOST_CLASS = 15  # traffic classes of SAI, some of which carry tunnels


def read_switch(text: str, file: str) -> tuple[model.Switch, Problems]:
    """Return the switch of a config_db.json and what in it is wrong. Raises ConfigError for what is none."""
    tables = _tables(text, file)
    read = _Reading(tables, Problems(file))
    meta = tables.get("DEVICE_METADATA", {}).get("localhost", {})
    platform = str(meta.get("platform", ""))
    pattern = next(iter(tables.get("LOSSLESS_TRAFFIC_PATTERN", {}).values()), {})
    default = next(iter(tables.get("DEFAULT_LOSSLESS_BUFFER_PARAMETER", {}).values()), {})
    poll = tables.get("PFC_WD", {}).get("GLOBAL", {})
    ports = read.ports()
    lldp = [row.get("enabled") for row in tables.get("LLDP_PORT", {}).values()]
    globals_ = tables.get("BGP_GLOBALS", {}).get("default", {})
    switch = model.Switch(
        name=str(meta.get("hostname", "")) or file,
        box=model.SwitchBox(
            os="sonic", chip=chip_of_platform(platform), platform=platform, mac=str(meta.get("mac", ""))
        ),
        ports=ports,
        buffers=model.Buffers(
            pools=read.pools(),
            over_subscribe=read.value(
                default, "over_subscribe_ratio", "DEFAULT_LOSSLESS_BUFFER_PARAMETER", most=65535
            ),
            small_packet_percent=read.value(
                pattern, "small_packet_percentage", "LOSSLESS_TRAFFIC_PATTERN", most=100
            ),
            lossless_mtu_bytes=read.value(pattern, "mtu", "LOSSLESS_TRAFFIC_PATTERN", least=1, most=9216),
        ),
        watchdog_poll_ms=read.value(poll, "POLL_INTERVAL", "PFC_WD|GLOBAL", least=100, most=1000),
        lldp=None if not lldp else all(value == "true" for value in lldp),
        bgp=model.Bgp(
            asn=read.value(
                meta if "bgp_asn" in meta else globals_,
                "bgp_asn" if "bgp_asn" in meta else "local_asn",
                "DEVICE_METADATA|localhost",
                least=1,
                most=2**32 - 1,
            ),
            loopback=_loopback(tables),
        ),
        file=file,
    )
    return switch, read.problems


def _tables(text: str, file: str) -> Tables:
    try:
        data = read_json(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"is not JSON: {error.msg}", file=file, line=error.lineno) from None
    except ValueError as error:
        raise ConfigError(str(error), file=file) from None
    if not isinstance(data, dict):
        raise ConfigError("got no tables, expected a config_db.json", file=file, line=1)
    tables: Tables = {}
    for table, rows in data.items():
        if not isinstance(rows, dict):
            raise ConfigError(f"got {quoted(rows)}, expected rows by key", file=file, key=table)
        name, bar, key = table.partition("|")
        if bar:  # as the database itself has them, a row a key
            tables.setdefault(name, {})[key] = rows
            continue
        tables[table] = {key: row if isinstance(row, dict) else {} for key, row in rows.items()}
    if len(tables.get("PORT", {})) > MOST_PORTS:
        raise ConfigError(f"got more than {MOST_PORTS} ports", file=file, key="PORT")
    return tables


def bare(reference: object) -> str:
    """Return the key that a reference names, as it is written now or was in brackets."""
    return re.sub(r"^\[(?:[A-Z0-9_]+[|:])?(.*)\]$", r"\1", str(reference))


def _jack(name: str, lanes: int) -> int:
    """Return a port's number, from 1: names count lanes, several of which are in a cage; 0 where none tells."""
    number = re.fullmatch(r"Ethernet(\d{1,4})", name)
    return int(number[1]) // lanes + 1 if number and lanes else 0


def _loopback(tables: Tables) -> str:
    for key in tables.get("LOOPBACK_INTERFACE", {}):
        _, bar, address = key.partition("|")
        if bar and ":" not in address:
            return address.partition("/")[0]
    return ""


@dataclass
class _Reading:
    tables: Tables
    problems: Problems
    _maps: dict[tuple[str, ...], model.Maps] = field(default_factory=dict)
    _lanes: dict[str, str] = field(default_factory=dict)  # ports by their lanes

    @property
    def whole(self) -> bool:
        """True of a database, false of some of its tables."""
        return "PORT" in self.tables

    def named(self) -> dict[str, dict[str, Any]]:
        """Rows of PORT; of some tables without it, an empty row for each port that they name."""
        if self.whole:
            return self.tables["PORT"]
        names: dict[str, dict[str, Any]] = {}
        for table in _PORT_TABLES:
            rows = self.tables.get(table, {})
            keys = [name for row in rows.values() for name in row] if table == "CABLE_LENGTH" else list(rows)
            for key in keys:
                names |= {name: {} for name in key.partition("|")[0].split(",") if name not in _NO_PORT}
        return dict(list(names.items())[:MOST_PORTS])

    def value(self, row: Mapping[str, Any], name: str, where: str, *, most: int, least: int = 0) -> int | None:
        if row.get(name) in (None, "None"):  # minigraphs leave what they do not say so
            return None
        return self.problems.number(row[name], f"{where}|{name}", least=least, most=most)

    def referred(self, row: Mapping[str, Any], name: str, table: str, where: str) -> dict[str, Any] | None:
        """The row of another table that a field names; None, and a problem, where it is gone."""
        if name not in row:
            return None
        key = bare(row[name])
        found = self.tables.get(table, {}).get(key)
        if found is None and (table in self.tables or self.whole):
            self.problems.add("reference", f"{where}|{name}", f"got {quoted(row[name])}, which is not in {table}")
        return found

    def pools(self) -> dict[str, model.Pool]:
        found: dict[str, model.Pool] = {}
        for name, row in self.tables.get("BUFFER_POOL", {}).items():
            where = f"BUFFER_POOL|{name}"
            kind, mode = str(row.get("type", "")), str(row.get("mode", ""))
            if kind not in ("ingress", "egress", "both") or mode not in ("dynamic", "static"):
                self.problems.add("range", where, f"got type {quoted(kind)} and mode {quoted(mode)}")
                continue
            found[name] = model.Pool(
                "egress" if kind == "egress" else "ingress",
                "static" if mode == "static" else "dynamic",
                self.value(row, "size", where, most=MOST_BYTES),
                self.value(row, "xoff", where, most=MOST_BYTES) or 0,
            )
        return found

    def ports(self) -> dict[str, model.Port]:
        lengths: dict[str, Any] = {}
        for row in self.tables.get("CABLE_LENGTH", {}).values():
            lengths |= row
        groups, queues = self._by_port("BUFFER_PG", 8), self._queues()
        addresses = self._addresses()
        unnumbered = {key.rpartition("|")[2] for key in self.tables.get("BGP_NEIGHBOR", {})}
        for table in _PORT_TABLES if self.whole else ():
            self._known_ports(table)
        found = {}
        for name, row in self.named().items():
            maps, trust, pfc = self._qos(name)
            self._lanes_once(name, row)
            lanes = len(str(row["lanes"]).split(",")) if "lanes" in row else 0
            speed = self.value(row, "speed", f"PORT|{name}", least=1, most=1_600_000)
            found[name] = model.Port(
                name=name,
                link=model.PortLink(
                    jack=_jack(name, lanes) or self.value(row, "index", f"PORT|{name}", most=65535) or 0,
                    speed_bps=(speed or 0) * 10**6,
                    lanes=lanes,
                    mtu_bytes=self.value(row, "mtu", f"PORT|{name}", least=68, most=9216),
                    fec=str(row.get("fec", "")),
                    cable_m=self.problems.length_m(lengths[name], f"CABLE_LENGTH|{name}")
                    if name in lengths
                    else None,
                    peer=self._peer(name, row),
                ),
                qos=model.PortQos(
                    trust=trust,  # type: ignore[arg-type]
                    maps=maps,
                    pfc=pfc,
                    groups={
                        number: self._group(number_row, name, number)
                        for number, number_row in groups.get(name, [])
                    },
                    queues=queues.get(name, {}),
                    watchdog=self._watchdog(name, pfc),
                ),
                address=addresses.get(name, ""),
                bgp=name in unnumbered
                and self.tables.get("INTERFACE", {}).get(name, {}).get("ipv6_use_link_local_only") == "enable",
                up=row.get("admin_status", "up") == "up",
            )
        return found

    def _lanes_once(self, port: str, row: dict[str, Any]) -> None:
        lanes = str(row.get("lanes", ""))
        owner = self._lanes.setdefault(lanes, port) if lanes else port
        if owner != port:
            message = f"got lanes {quoted(lanes)}, which {owner} has, expected lanes of its own"
            self.problems.add("twice", f"PORT|{port}|lanes", message)

    def _known_ports(self, table: str) -> None:
        known = self.tables.get("PORT", {})
        rows = self.tables.get(table, {})
        keys = [name for row in rows.values() for name in row] if table == "CABLE_LENGTH" else list(rows)
        for key in keys:
            for name in key.partition("|")[0].split(","):
                if name not in known and name not in _NO_PORT:
                    self.problems.add(
                        "reference", f"{table}|{key}", f"got port {quoted(name)}, which is not in PORT"
                    )

    def _by_port(self, table: str, most: int) -> dict[str, list[tuple[int, dict[str, Any]]]]:
        """Rows whose key is `port|3-4`, or `port,port|3`, by port and number."""
        found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for key, row in self.tables.get(table, {}).items():
            names, _, numbers = key.rpartition("|")
            first, dash, last = numbers.partition("-")
            low = self.problems.number(first, f"{table}|{key}", most=most - 1)
            high = self.problems.number(last, f"{table}|{key}", most=most - 1) if dash else low
            if low is None or high is None:
                continue
            for name in names.split(","):
                found.setdefault(name, []).extend((number, row) for number in range(low, high + 1))
        return found

    def _group(self, row: dict[str, Any], port: str, number: int) -> model.Group:
        where = f"BUFFER_PG|{port}|{number}"
        if row.get("profile") == model.DERIVED:
            return model.Group(model.DERIVED, "", 0)
        profile = self.referred(row, "profile", "BUFFER_PROFILE", where)
        name = bare(row.get("profile", ""))
        if profile is None:
            return model.Group(name, "", 0)
        where = f"BUFFER_PROFILE|{name}"
        self.referred(profile, "pool", "BUFFER_POOL", where)
        self.value(profile, "dynamic_th", where, least=-8, most=7)

        def of(field_: str) -> int | None:
            return self.value(profile, field_, where, most=MOST_BYTES)

        alpha = None
        if "dynamic_th" in profile:
            quiet = Problems("")
            alpha = quiet.number(profile["dynamic_th"], "", least=-8, most=7)
        return model.Group(
            name,
            bare(profile.get("pool", "")),
            of("size") or 0,
            xoff_bytes=of("xoff"),
            xon_bytes=of("xon"),
            xon_offset_bytes=of("xon_offset"),
            dynamic_th=alpha,
            static_th=of("static_th"),
        )

    def _queues(self) -> dict[str, dict[int, model.Queue]]:
        found: dict[str, dict[int, model.Queue]] = {}
        buffers = {
            (port, number): bare(row.get("profile", ""))
            for port, rows in self._by_port("BUFFER_QUEUE", 16).items()
            for number, row in rows
        }
        for port, rows in self._by_port("QUEUE", 16).items():
            for number, row in rows:
                where = f"QUEUE|{port}|{number}"
                scheduler = self.referred(row, "scheduler", "SCHEDULER", where)
                red = self.referred(row, "wred_profile", "WRED_PROFILE", where)
                kind = str((scheduler or {}).get("type", "")).upper()
                weight = self.value(scheduler or {}, "weight", "SCHEDULER", least=1, most=100)
                found.setdefault(port, {})[number] = model.Queue(
                    "strict" if kind == "STRICT" else "dwrr" if kind in ("DWRR", "WRR") else None,
                    weight,
                    self._ecn(red) if red is not None else None,
                    buffers.pop((port, number), ""),
                )
        for (port, number), profile in buffers.items():
            found.setdefault(port, {})[number] = model.Queue(profile=profile)
        return found

    def _ecn(self, row: dict[str, Any]) -> model.Ecn | None:
        marks = str(row.get("ecn", "ecn_none"))
        colour = next((c for c in ("green", "yellow", "red") if marks in ("ecn_all",) or c in marks), None)
        if colour is None:
            return None
        low = self.value(row, f"{colour}_min_threshold", "WRED_PROFILE", most=MOST_BYTES)
        high = self.value(row, f"{colour}_max_threshold", "WRED_PROFILE", most=MOST_BYTES)
        chance = self.value(row, f"{colour}_drop_probability", "WRED_PROFILE", most=100)
        if low is None or high is None:
            return None
        return model.Ecn(low, high, 100 if chance is None else chance)

    def _qos(self, port: str) -> tuple[model.Maps, str | None, frozenset[int] | None]:
        row = self.tables.get("PORT_QOS_MAP", {}).get(port)
        if row is None:
            return model.Maps(), None, None
        where = f"PORT_QOS_MAP|{port}"
        trust = "dscp" if "dscp_to_tc_map" in row else "pcp" if "dot1p_to_tc_map" in row else "none"
        key = tuple(str(row.get(name, "")) for name in ("dscp_to_tc_map", "dot1p_to_tc_map", *_MAP_TABLES))
        if key not in self._maps:
            self._maps[key] = self._read_maps(row, where)
        # without the field no priority is paused
        pfc = (
            self.problems.priorities(row["pfc_enable"], f"{where}|pfc_enable")
            if "pfc_enable" in row
            else frozenset()
        )
        return self._maps[key], trust, pfc

    def _read_maps(self, row: dict[str, Any], where: str) -> model.Maps:
        numbers: dict[str, dict[int, int]] = {}
        tables = {
            "dscp_to_tc_map": ("DSCP_TO_TC_MAP", 63, MOST_CLASS),
            "dot1p_to_tc_map": ("DOT1P_TO_TC_MAP", 7, MOST_CLASS),
            **_MAP_TABLES,
        }
        for name, (table, most, most_right) in tables.items():
            found = self.referred(row, name, table, where) or {}
            pairs = {}
            for left, right in found.items():
                a = self.problems.number(left, f"{table}|{left}", most=most)
                b = self.problems.number(right, f"{table}|{left}", most=most_right)
                if a is not None and b is not None:
                    pairs[a] = b
            numbers[name] = pairs
        return model.Maps(
            numbers["dscp_to_tc_map"] or numbers["dot1p_to_tc_map"],
            numbers["tc_to_pg_map"],
            numbers["tc_to_queue_map"],
            numbers["pfc_to_queue_map"],
        )

    def _watchdog(self, port: str, pfc: frozenset[int] | None) -> model.Watchdog | None:
        row = self.tables.get("PFC_WD", {}).get(port)
        watched = self.tables.get("PORT_QOS_MAP", {}).get(port, {}).get("pfcwd_sw_enable")
        if pfc and isinstance(watched, str) and watched and not pfc & Problems("").priorities(watched, ""):
            return None  # it looks at other priorities than those that are paused
        if row is None:
            local = self.tables.get("DEVICE_METADATA", {}).get("localhost", {})
            return STARTED if pfc and local.get("default_pfcwd_status") == "enable" else None
        where = f"PFC_WD|{port}"
        detection = self.value(row, "detection_time", where, least=100, most=5000)
        restoration = self.value(row, "restoration_time", where, least=100, most=60000)
        action = str(row.get("action", "drop"))
        if action not in ("drop", "forward", "alert"):
            self.problems.add("range", f"{where}|action", f"got {quoted(action)}, expected drop, forward or alert")
        return model.Watchdog(detection or 0, restoration or 0, action)

    def _peer(self, port: str, row: dict[str, Any]) -> str:
        known = self.tables.get("DEVICE_NEIGHBOR", {}).get(port)
        if known is not None and "name" in known:
            return f"{known['name']}/{known.get('port', '')}"
        return str(row.get("description", ""))

    def _addresses(self) -> dict[str, str]:
        found = {}
        for key in self.tables.get("INTERFACE", {}):
            name, bar, address = key.partition("|")
            if bar:
                found[name] = address
        return found


_PORT_TABLES = ("BUFFER_PG", "QUEUE", "PORT_QOS_MAP", "PFC_WD", "CABLE_LENGTH")
_NO_PORT = ("GLOBAL", "global", "CPU")
STARTED = model.Watchdog(
    200, 200, "drop"
)  # `pfcwd start_default`, which a switch runs by itself where it is told to
_MAP_TABLES = {
    "tc_to_pg_map": ("TC_TO_PRIORITY_GROUP_MAP", MOST_CLASS, 7),
    "tc_to_queue_map": ("TC_TO_QUEUE_MAP", MOST_CLASS, 15),
    "pfc_to_queue_map": ("MAP_PFC_PRIORITY_TO_QUEUE", 7, 15),
}
