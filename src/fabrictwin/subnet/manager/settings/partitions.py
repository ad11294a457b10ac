"""Partitions as OpenSM's partitions.conf writes them (opensm(8), PARTITION CONFIGURATION).

    Default=0x7fff, ipoib : ALL=limited, SELF=full ;
    storage=0x1, ipoib, mtu=5, defmember=full : 0x0002c90300000011, 0x0002c90300000021=limited ;

A definition ends with `;` and may run over several lines; what follows `#` is a comment. A P_Key that is left out
is the lowest that no definition has. Where no definition is of 0x7fff, the manager's port is a full member of it
and everybody else a limited one. Definitions of one P_Key are merged.

Left out, and refused by name: groups of their own (`mgid=`), several scopes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.subnet.manager.settings.manager_settings import DEFAULT_PKEY, Broadcast, Partition

_FLAGS = ("indx0", "ipoib", "defmember", "rate", "mtu", "sl", "scope", "Q_Key", "TClass", "FlowLabel")
_MEMBERSHIPS = ("full", "limited", "both")
_KEYWORDS = ("ALL", "ALL_CAS", "ALL_SWITCHES", "ALL_ROUTERS", "SELF")
_MOST = {"rate": 63, "mtu": 5, "sl": 15, "scope": 15, "Q_Key": 2**32 - 1, "TClass": 255, "FlowLabel": 2**20 - 1}


@record
class Everybody:
    """The end ports that keywords stand for, by GUID."""

    adapters: frozenset[int]
    switches: frozenset[int]
    manager: frozenset[int]  # the manager's own port
    routers: frozenset[int] = frozenset()


@dataclass
class _Definition:
    name: str
    pkey: int | None
    line: int
    first: bool = False
    ipoib: bool = False
    flags: dict[str, int] = field(default_factory=dict)
    full: set[int] = field(default_factory=set)
    limited: set[int] = field(default_factory=set)
    all_full: bool = False
    all_limited: bool = False


def read_partitions(path: str | Path, everybody: Everybody) -> tuple[Partition, ...]:
    """The partitions of a file, the default one among them. Raises ConfigError with file and line."""
    path = Path(path)
    merged: dict[int, _Definition] = {}
    nameless: list[_Definition] = []
    for line, head, body in _definitions(read_text(path, errors="replace"), path):
        one = _head(head, path, line)
        _members(one, body, everybody, path=path)
        if one.pkey is None:
            nameless.append(one)
        elif one.pkey in merged:
            _merge(merged[one.pkey], one)
        else:
            merged[one.pkey] = one
    free = (key for key in range(1, DEFAULT_PKEY) if key not in merged)
    for one in nameless:
        one.pkey = next(free, None)
        if one.pkey is None:
            raise ConfigError("got more partitions than there are P_Keys", file=path, line=one.line)
        merged[one.pkey] = one
    if DEFAULT_PKEY not in merged:
        default = _Definition("Default", DEFAULT_PKEY, 0, all_limited=True, full=set(everybody.manager))
        merged = {DEFAULT_PKEY: default, **merged}
    # what asks for the first place of the table comes first, in the file's order otherwise
    ordered = sorted(merged.values(), key=lambda one: not one.first)
    return tuple(_partition(one) for one in ordered)


def _definitions(text: str, path: Path) -> Iterator[tuple[int, str, list[tuple[int, str]]]]:
    """(line, what stands before the colon, [(line, what stands after it)]) of each definition."""
    head: str | None = None
    begun = 0
    body: list[tuple[int, str]] = []
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        rest = raw.partition("#")[0].strip()
        while rest:
            if head is None:
                part, colon, rest = rest.partition(":")
                begun = begun if pending else number
                pending = f"{pending} {part}".strip()
                if ";" in pending:
                    raise ConfigError(f"got {pending!r}, expected 'name=0x1 : members ;'", file=path, line=begun)
                if colon:
                    head, pending, body = pending, "", []
                continue
            part, end, rest = rest.partition(";")
            body.append((number, part.strip()))
            rest = rest.strip()
            if end:
                yield begun, head, body
                head = None
    if head is not None or pending:
        raise ConfigError("got a definition that does not end with ';'", file=path, line=begun)


def _number(word: str, what: str, *, most: int, path: Path, line: int) -> int:
    value = whole_or_none(word, most=most, base=0)
    if value is None:
        raise ConfigError(f"got {quoted(word)}, expected {what} up to {most:#x}", file=path, line=line)
    return value


def _head(text: str, path: Path, line: int) -> _Definition:
    first, *rest = (part.strip() for part in text.split(","))
    name, equals, key = (part.strip() for part in first.partition("="))
    one = _Definition(name, None, line)
    if equals:
        one.pkey = _number(key, "a P_Key", most=0xFFFF, path=path, line=line) & DEFAULT_PKEY
        if not one.pkey:
            raise ConfigError(f"got P_Key {key!r}, expected 0x1 to 0x7fff", file=path, line=line)
    elif name.lower() == "default":
        one.pkey = DEFAULT_PKEY
    member = "limited"
    for part in rest:
        flag, equals, value = (word.strip() for word in part.partition("="))
        if flag not in _FLAGS:
            hint = did_you_mean(flag, _FLAGS)
            raise ConfigError(f"got {flag!r}, expected one of {', '.join(_FLAGS)}{hint}", file=path, line=line)
        if flag in ("indx0", "ipoib"):
            if equals:
                raise ConfigError(f"got {part!r}, expected {flag} without a value", file=path, line=line)
            one.first |= flag == "indx0"
            one.ipoib |= flag == "ipoib"
        elif flag == "defmember":
            if value not in _MEMBERSHIPS:
                raise ConfigError(f"got {part!r}, expected full, limited or both", file=path, line=line)
            member = value
        elif flag in one.flags:
            raise ConfigError(f"got {flag} twice, expected it once", file=path, line=line)
        else:
            one.flags[flag] = _number(value, flag, most=_MOST[flag], path=path, line=line)
    if one.flags and not one.ipoib:
        key = next(iter(one.flags))
        raise ConfigError(f"got {key} without ipoib, which has the group that it is of", file=path, line=line)
    one.flags["defmember"] = _MEMBERSHIPS.index(member)
    return one


def _members(one: _Definition, body: list[tuple[int, str]], everybody: Everybody, *, path: Path) -> None:
    standard = _MEMBERSHIPS[one.flags.pop("defmember")]
    for line, text in body:
        for word in (part.strip() for part in text.split(",")):
            if not word:
                continue
            who, equals, membership = (part.strip() for part in word.partition("="))
            if who == "mgid":
                raise ConfigError("got mgid: groups of their own are left out", file=path, line=line)
            membership = membership or ("limited" if equals else standard)
            if membership not in _MEMBERSHIPS:
                hint = did_you_mean(membership, _MEMBERSHIPS)
                raise ConfigError(f"got {word!r}, expected full, limited or both{hint}", file=path, line=line)
            if who == "ALL":
                one.all_full |= membership != "limited"
                one.all_limited |= membership != "full"
                continue
            guids = _who(who, everybody, path=path, line=line)
            if membership != "limited":
                one.full |= guids
            if membership != "full":
                one.limited |= guids


def _who(who: str, everybody: Everybody, *, path: Path, line: int) -> set[int]:
    if who in _KEYWORDS:
        sets = {
            "ALL_CAS": everybody.adapters,
            "ALL_SWITCHES": everybody.switches,
            "ALL_ROUTERS": everybody.routers,
            "SELF": everybody.manager,
        }
        return set(sets[who])
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}|\d{1,20}", who):
        hint = did_you_mean(who, _KEYWORDS)
        raise ConfigError(
            f"got {who!r}, expected a port GUID or one of {', '.join(_KEYWORDS)}{hint}", file=path, line=line
        )
    return {_number(who, "a GUID", most=2**64 - 1, path=path, line=line)}


def _merge(into: _Definition, one: _Definition) -> None:
    into.full |= one.full
    into.limited |= one.limited
    into.all_full |= one.all_full
    into.all_limited |= one.all_limited
    into.first |= one.first
    into.ipoib |= one.ipoib
    into.flags = one.flags | into.flags


def _partition(one: _Definition) -> Partition:
    assert one.pkey is not None
    f = one.flags
    broadcast = Broadcast(
        rate=f.get("rate", 3),
        mtu=f.get("mtu", 4),
        sl=f.get("sl", 0),
        scope=f.get("scope", 2),
        qkey=f.get("Q_Key", Broadcast.qkey),
        traffic_class=f.get("TClass", 0),
        flow_label=f.get("FlowLabel", 0),
    )
    return Partition(
        one.pkey,
        full=None if one.all_full else frozenset(one.full),
        limited=None if one.all_limited else frozenset(one.limited),
        ipoib=one.ipoib,
        broadcast=broadcast,
        both=one.all_full and one.all_limited,
    )
