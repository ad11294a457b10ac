"""Forwarding tables as the tools print them: read, bound to a fabric, written.

Read are what `ibroute` and `dump_lfts` of infiniband-diags print (with `-n` or without, `-a` too) and what OpenSM
writes to `opensm-lfts.dump`. A dump holds a block a switch:

    Unicast lids [0x0-0x16] of switch DR path slid 0; dlid 0; 0,1,5 guid 0x02f7000000000003 (leaf-3):
      Lid  Out   Destination
           Port     Info
    0x0001 005 : (Channel Adapter portguid 0x02f7000000000007: 'host-0 mlx5_0')
    0x0003 006 : (path #2 out of 2: portguid 0x02f7000000000007)
    22 valid lids dumped

Who owns a LID is taken from what the lines say; where they say nothing (`-n`), a switch's own LID is the one that
it keeps to itself (port 0), and adapters have the LIDs that the cluster was discovered with. A dump knows nothing
of service levels: its paths are judged as if all shared one virtual lane.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fabrictwin.base.arrays import I32, U8
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.textfile import open_bytes
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.routing.engines.filling import NO_PORT, Tables
from fabrictwin.routing.graph.switches import LAST_UNICAST_LID, MAX_LMC, Lids, Switches

_HEAD = re.compile(rb"Unicast lids \[(\w+)-(\w+)\] of switch .*?\bguid 0x([0-9a-fA-F]{1,16}) \('?(.*?)'?\):\s*\Z")
_ENTRY = re.compile(rb"(0x[0-9a-fA-F]{1,4})\s+(\d{1,3})\b\s*(.*?)\s*\Z")
_OWNER = re.compile(rb"portguid 0x([0-9a-fA-F]{1,16})")
_FOOT = re.compile(rb"(\d{1,9}) (?:valid )?lids dumped\s*\Z")
_COLUMNS = (b"Lid  Out   Destination", b"Port     Info")
_PLAIN = re.compile(rb"0x[0-9a-fA-F]{4} \d{3}\b")


@dataclass
class Dump:
    """What a file of dumped tables says."""

    path: str
    tables: dict[int, U8] = field(default_factory=dict)  # by switch GUID: [49152] port by LID, 255 none
    names: dict[int, str] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)  # where each switch's block starts
    owner: dict[int, int] = field(default_factory=dict)  # port GUID (a switch's node GUID) by LID


def read_dump(path: str | Path) -> Dump:
    """Read a file of dumped tables. Raises ConfigError with file and line."""
    try:
        with open_bytes(path) as file:
            return parse_dump(file, str(path))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from None


def parse_dump(lines: Iterable[bytes], path: str) -> Dump:
    """A dump from its lines. Raises ConfigError with `path` and line."""
    dump = Dump(path)
    table: U8 | None = None
    counted = last = 0
    number = 0
    owner = dump.owner

    def wrong(what: str, expected: str) -> ConfigError:
        return ConfigError(f"got {what}, expected {expected}", file=path, line=number)

    def quoted(line: bytes) -> str:
        text = line.decode("utf-8", "replace").strip()
        return repr(text if len(text) <= 60 else text[:57] + "...")

    for line in lines:
        number += 1
        if line[:2] == b"0x":
            if table is None:
                raise wrong(quoted(line), "a switch's line 'Unicast lids [...] of switch ...' before entries")
            if _PLAIN.match(line):  # millions of lines look like this
                lid, port = int(line[2:6], 16), int(line[7:10])
                rest = line[10:] if lid not in owner else b""
            else:
                entry = _ENTRY.match(line)
                if entry is None:
                    raise wrong(quoted(line), "an entry such as '0x0001 005'")
                lid, port, rest = int(entry[1], 16), int(entry[2]), entry[3]
            if lid > LAST_UNICAST_LID:
                raise wrong(f"LID {lid:#x}", f"at most {LAST_UNICAST_LID:#x}")
            if port > NO_PORT:
                raise wrong(f"port {port}", "at most 255")
            if table[lid] != NO_PORT:
                raise wrong(f"a second entry for LID {lid:#x}", "one")
            table[lid] = port
            counted += 1
            last = lid
            if rest and lid:
                found = _OWNER.search(rest)
                if found:
                    owner[lid] = int(found[1], 16)
            continue
        stripped = line.strip()
        if not stripped or stripped in _COLUMNS or stripped.startswith(b"*** WARNING ***"):
            continue
        head = _HEAD.match(line)
        if head:
            if table is not None:
                raise wrong("another switch", f"the end of the block of line {max(dump.lines.values())}")
            guid = int(head[3], 16)
            if guid in dump.tables:
                raise wrong(f"switch {guid:#018x} again", f"each once; it stands in line {dump.lines[guid]}")
            dump.tables[guid] = table = np.full(LAST_UNICAST_LID + 1, NO_PORT, np.uint8)
            dump.names[guid] = head[4].decode("utf-8", "replace")
            dump.lines[guid] = number
            counted = last = 0
            continue
        foot = _FOOT.match(stripped)
        if foot and table is not None:
            # OpenSM's own dump tells the highest LID: more than its entries where LIDs have gaps
            highest = b"valid" not in stripped and int(foot[1]) >= last
            if int(foot[1]) != counted and not (highest and int(foot[1]) > counted):
                raise wrong(f"{int(foot[1])} LIDs", f"{counted}, as many as there are entries above")
            table = None
            continue
        raise wrong(quoted(line), "a switch, an entry or 'N valid lids dumped'")
    if table is not None:
        raise wrong("the end of the file", f"the end of the block of line {max(dump.lines.values())}")
    if not dump.tables:
        raise ConfigError("got no switch, expected tables as ibroute or dump_lfts print them", file=path)
    return dump


def bind(dump: Dump, fabric: Fabric, switches: Switches) -> tuple[Lids, Tables]:
    """A dump's tables by the rows of a fabric's switches.

    Raises ConfigError for a switch or an owner of a LID that the fabric has not, and for owners of uneven numbers
    of LIDs. Switches that are not in the dump have empty tables; `remark` counts them.
    """
    row = {int(guid): r for r, guid in enumerate(switches.row_guid)}
    strangers = [guid for guid in dump.tables if guid not in row]
    if strangers:
        guid = strangers[0]
        raise ConfigError(
            f"got switch {guid:#018x} ({dump.names[guid]}), expected one of the cluster's switches",
            file=dump.path,
            line=dump.lines[guid],
        )
    lids = (
        _lids_by_owner(dump, fabric, switches, row) if dump.owner else _lids_as_known(dump, fabric, switches, row)
    )
    lft = np.full((switches.rows, lids.top + 1), NO_PORT, np.uint8)
    for guid, table in dump.tables.items():
        lft[row[guid]] = table[: lids.top + 1]
    missing = [r for r in range(switches.rows) if int(switches.row_guid[r]) not in dump.tables]
    remark = (
        f"{len(missing)} switches are not in the dump, {switches.row_name[missing[0]]} the first"
        if missing
        else ""
    )
    return lids, Tables(Path(dump.path).name, lft, remark=remark)


def _lids_by_owner(dump: Dump, fabric: Fabric, switches: Switches, row: dict[int, int]) -> Lids:
    row_lid = np.zeros(switches.rows, np.int32)
    owned: dict[int, list[int]] = {}
    find = _Endpoints(dump, fabric, switches)
    for lid, guid in sorted(dump.owner.items()):
        x = find(lid, guid)
        if guid in row and (x == NONE or dump.tables.get(guid, _NO_TABLE)[lid] == 0):
            row_lid[row[guid]] = row_lid[row[guid]] or lid
        elif x != NONE:
            owned.setdefault(x, []).append(lid)
        else:
            raise ConfigError(
                f"got LID {lid:#x} of port {guid:#018x}, expected a port of the cluster", file=dump.path
            )
    width = len(next(iter(owned.values()))) if owned else 1
    endpoint_lid = np.zeros(len(switches.endpoint_row), np.int32)
    for x, lids in owned.items():
        if len(lids) != width or lids != list(range(lids[0], lids[0] + width)) or width not in _WIDTHS:
            name = fabric.node_name(int(switches.endpoint_node[x]))
            raise ConfigError(
                f"got LIDs {_spans(lids)} for {name}, expected {width if width in _WIDTHS else 'a power of two'} "
                "in a row, as many as others have",
                file=dump.path,
            )
        endpoint_lid[x] = lids[0]
    return Lids(row_lid, endpoint_lid, width.bit_length() - 1)


class _Endpoints:
    """Finds the endpoint of a port GUID.

    A cluster knows adapters by their first port's or their node's GUID, and port 1 of some adapters has the
    node's GUID plus one. Where both readings name an endpoint, that one is meant to whose port its own switch
    sends the LID.
    """

    def __init__(self, dump: Dump, fabric: Fabric, switches: Switches) -> None:
        self.tables, self.switches = dump.tables, switches
        self.by_guid = {int(fabric.node_guid[node]): x for x, node in enumerate(switches.endpoint_node)}

    def __call__(self, lid: int, guid: int) -> int:
        found = [self.by_guid[g] for g in (guid, guid - 1) if g in self.by_guid]
        return next((x for x in found if self._delivered(lid, x)), found[0] if found else NONE)

    def _delivered(self, lid: int, x: int) -> bool:
        r = int(self.switches.endpoint_row[x])
        table = self.tables.get(int(self.switches.row_guid[r]), _NO_TABLE) if r != NONE else _NO_TABLE
        return int(table[lid]) == int(self.switches.endpoint_number[x])


_NO_TABLE = np.full(LAST_UNICAST_LID + 1, NO_PORT, np.uint8)
_WIDTHS = tuple(1 << lmc for lmc in range(MAX_LMC + 1))


def _spans(lids: list[int]) -> str:
    return ", ".join(f"{lid:#x}" for lid in lids[:4]) + (", ..." if len(lids) > 4 else "")


def _lids_as_known(dump: Dump, fabric: Fabric, switches: Switches, row: dict[int, int]) -> Lids:
    row_lid: I32 = fabric.node_lid[switches.row_node].astype(np.int32)
    for guid, table in dump.tables.items():
        own = np.flatnonzero(table == 0)
        own = own[own > 0]
        if len(own):
            row_lid[row[guid]] = own[0]
    endpoint_lid: I32 = fabric.node_lid[switches.endpoint_node].astype(np.int32)
    if not endpoint_lid.any():
        raise ConfigError(
            "got tables that do not say whose the LIDs are, expected ones that do (without -n), or a cluster that "
            "was discovered with its LIDs",
            file=dump.path,
        )
    return Lids(row_lid, endpoint_lid)


def format_dump(fabric: Fabric, switches: Switches, lids: Lids, tables: Tables) -> Iterator[str]:
    """Lines of tables as `dump_lfts` prints them, switches in the order of the fabric."""
    owner: dict[int, str] = {}
    for r, lid in enumerate(lids.row):
        guid = int(switches.row_guid[r])
        owner[int(lid)] = f"(Switch portguid {guid:#018x}: '{switches.row_name[r]}')"
    width = 1 << lids.lmc
    for x, base in enumerate(lids.endpoint):
        node = int(switches.endpoint_node[x])
        guid, name = int(fabric.node_guid[node]), fabric.node_name(node)
        if switches.endpoint_row[x] == NONE:
            continue
        owner[int(base)] = f"(Channel Adapter portguid {guid:#018x}: '{name}')"
        for k in range(1, width):
            owner[int(base) + k] = f"(path #{k + 1} out of {width}: portguid {guid:#018x})"
    for r in range(switches.rows):
        guid = int(switches.row_guid[r])
        yield (
            f"Unicast lids [0x0-{tables.lft.shape[1] - 1:#x}] of switch Lid {lids.row[r]} "
            f"guid {guid:#018x} ({switches.row_name[r]}):"
        )
        yield "  Lid  Out   Destination"
        yield "       Port     Info"
        valid = np.flatnonzero(tables.lft[r] != NO_PORT)
        for lid in valid.tolist():
            yield f"{lid:#06x} {int(tables.lft[r, lid]):03d} : {owner.get(lid, '')}".rstrip(" :")
        yield f"{len(valid)} valid lids dumped"
