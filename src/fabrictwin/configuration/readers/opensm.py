"""OpenSM's files as a subnet: opensm.conf, partitions.conf, files of GUIDs, a QoS policy."""

from __future__ import annotations

import re

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.configuration.model.subnet import PartitionLine, QosPolicy, Subnet
from fabrictwin.configuration.readers.problems import Problems

MOST_GUID = 2**64 - 1
_MEMBERSHIPS = ("full", "limited", "both")
_KEYWORDS = ("ALL", "ALL_CAS", "ALL_SWITCHES", "ALL_ROUTERS", "ALL_VCAS", "SELF")


def read_options(text: str, file: str) -> tuple[Subnet, Problems]:
    """Return the options of opensm.conf."""
    problems, found = Problems(file), {}
    for line, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        if not content:
            continue
        name, _, value = content.partition(" ")
        if not re.fullmatch(r"[a-zA-Z0-9_]+", name):
            problems.add("syntax", name[:40], f"got {quoted(content)}, expected OPTION VALUE", line)
            continue
        found[name] = value.strip()
    if not found:
        raise ConfigError("got no option, expected opensm.conf", file=file, line=1)
    said = {
        name: value for name, value in found.items() if value != "(null)"
    }  # as opensm -c writes what is not set
    return Subnet(options=said, file=file), problems


def read_partitions(text: str, file: str) -> tuple[Subnet, Problems]:
    """Return the definitions of partitions.conf. What is no definition is a problem."""
    problems = Problems(file)
    found = []
    for line, definition in _definitions(text, problems):
        one = _partition(definition, line, problems)
        if one is not None:
            found.append(one)
    return Subnet(partitions=tuple(found), file=file), problems


def _definitions(text: str, problems: Problems) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    pending, begun = "", 0
    for line, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        content = re.sub(
            r"\bmgid=.*$", "", content
        ).strip()  # a multicast group of the partition, to the line's end
        if not content:
            continue
        *whole, rest = content.split(";")
        for part in whole:
            begun = begun or line
            found.append((begun, f"{pending} {part}".strip()))
            pending, begun = "", 0
        if rest.strip():
            begun = begun or line
            pending = f"{pending} {rest.strip()}".strip()
    if pending:
        problems.add("syntax", pending[:40], "got a definition that does not end with ';'", begun)
    return found


def _partition(text: str, line: int, problems: Problems) -> PartitionLine | None:
    head, colon, body = text.partition(":")
    if not colon:
        problems.add("syntax", text[:40], "got no ':', expected NAME=PKEY, FLAGS : MEMBERS ;", line)
        return None
    first, *flags = (part.strip() for part in head.split(","))
    name, equals, key = (part.strip() for part in first.partition("="))
    pkey = whole_or_none(key, most=0xFFFF, base=0) if equals else 0x7FFF if name == "Default" else 0
    if pkey is None:
        problems.add("range", f"{name[:40]}", f"got P_Key {quoted(key)}, expected 0x1 to 0x7fff", line)
        return None
    numbers: dict[str, int] = {}
    ipoib, member = False, "limited"
    for flag in flags:
        word, equals, value = (part.strip() for part in flag.partition("="))
        if word == "ipoib":
            ipoib = True
        elif word == "defmember":
            if value not in _MEMBERSHIPS:
                problems.add(
                    "range", f"{name}.defmember", f"got {quoted(value)}, expected full, limited or both", line
                )
            else:
                member = value
        elif word in ("mtu", "rate", "sl"):
            number = problems.number(value, f"{name}.{word}", most=63 if word == "rate" else 15, line=line)
            if number is not None:
                numbers[word] = number
    members = _members(body, name, member, line=line, problems=problems)
    return PartitionLine(
        name,
        pkey & 0x7FFF,
        ipoib=ipoib,
        mtu=numbers.get("mtu"),
        rate=numbers.get("rate"),
        sl=numbers.get("sl"),
        defmember=member,
        members=members,
        line=line,
    )


def _members(body: str, name: str, standard: str, *, line: int, problems: Problems) -> dict[str, str]:
    found = {}
    for word in body.split(","):
        who, equals, how = (part.strip() for part in word.partition("="))
        if not who:
            continue
        how = next((full for full in _MEMBERSHIPS if how and full.startswith(how)), how) if equals else standard
        if how not in _MEMBERSHIPS:
            problems.add(
                "range", f"{name}: {who[:40]}", f"got {quoted(how)}, expected full, limited or both", line
            )
        elif who not in _KEYWORDS and whole_or_none(who, most=MOST_GUID, base=0) is None:
            problems.add("range", f"{name}", f"got {quoted(who)}, expected a port GUID or a keyword", line)
        else:
            found[who] = how
    return found


def read_guids(text: str, file: str, role: str) -> tuple[Subnet, Problems]:
    """Return a file of GUIDs; `role` is root, cn or io."""
    problems, found = Problems(file), []
    for line, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        if not content:
            continue
        guid = whole_or_none(content.split()[0], most=MOST_GUID, base=16)
        if guid is None:
            problems.add("range", role, f"got {quoted(content)}, expected a GUID", line)
        else:
            found.append(guid)
    field = {"root": "roots", "cn": "compute_nodes", "io": "io_nodes"}[role]
    return Subnet(file=file, **{field: tuple(found)}), problems  # type: ignore[arg-type]


def read_policy(text: str, file: str) -> tuple[Subnet, Problems]:
    """Return the levels, groups and rules of a QoS policy."""
    problems = Problems(file)
    levels: dict[str, int] = {}
    rules: list[tuple[str, str]] = []
    groups: dict[str, list[str]] = {}
    opened: list[str] = []
    said: dict[str, str] = {}
    guids: list[str] = []
    for line, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        name, colon, value = (part.strip() for part in content.partition(":"))
        if colon:
            said[name] = value
            if name == "port-guid":
                guids += [part.strip() for part in value.split(",")]
        elif content.startswith("end-"):
            if not opened or opened.pop() != content[4:]:
                problems.add("syntax", content, "got the end of what was not begun", line)
            if content == "end-qos-level":
                sl = problems.number(said.get("sl", ""), f"{said.get('name', '')}.sl", most=15, line=line)
                if sl is not None:
                    levels[said.get("name", "")] = sl
            elif content == "end-port-group":
                groups[said.get("name", "")] = guids
            elif content == "end-qos-match-rule":
                matched = next((f"{k} {v}" for k, v in said.items() if k not in ("use", "qos-level-name")), "")
                rules.append((matched, said.get("qos-level-name", "")))
        elif content:
            opened.append(content)
            said, guids = {}, []
    if opened:
        problems.add("syntax", opened[-1], f"got no end-{opened[-1][:40]}")
    listed = {name: ", ".join(of) for name, of in groups.items()}
    return Subnet(qos=QosPolicy(levels=levels, groups=listed, rules=tuple(rules)), file=file), problems
