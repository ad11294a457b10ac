"""NVUE commands as a switch: `nv set` lines, comments after `#`, ports as lists and ranges (`swp1-4,swp6`).

Or the YAML that NVUE keeps them as (`startup.yaml`), whose keys are the commands' words. What a line is not known
here for is kept as nothing: NVUE has far more commands than these. Where RoCE is on, what no command says is as
its mode sets it (Cumulus Linux user guide, RoCE).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import yaml

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.grouped import grouped
from fabrictwin.configuration.model import switches as model
from fabrictwin.configuration.policy.chips import chip_of_platform
from fabrictwin.configuration.readers.problems import Problems

MOST_BYTES = 2**40
MOST_PORTS = 1024
MOST_COMMANDS = 200_000
TRUST = {"l3": "dscp", "l2": "pcp", "port": "none", "both": "dscp"}
GLOBAL = "default-global"
ON = ("enable", "enabled", "on")
ROCE_CLASSES = {dscp: dscp >> 3 for dscp in range(64)}
ROCE_QUEUE_OF = {priority: priority if priority in (3, 6) else 0 for priority in range(8)}
ROCE_QUEUES = {
    0: model.Queue("dwrr", 50),
    3: model.Queue("dwrr", 50, model.Ecn(150_000, 1_501_500, 100)),
    6: model.Queue("strict"),
}


def read_switch(text: str, file: str) -> tuple[model.Switch, Problems]:
    """Return the switch that commands set up and what in them is wrong. Raises ConfigError where there is none."""
    reading = _Reading(Problems(file))
    seen = 0
    for line, raw in enumerate(text.splitlines(), 1):
        platform = re.match(r"#\s*platform (\S+)", raw)
        if platform:
            reading.whole.platform = platform[1]
        words = _words(raw)
        if words[:2] == ("nv", "set"):
            seen += 1
            reading.take(list(words[2:]), line)
    if not seen:
        raise ConfigError("got no `nv set` command, expected NVUE's", file=file, line=1)
    return reading.switch(file), reading.problems


def read_yaml_switch(text: str, file: str) -> tuple[model.Switch, Problems]:
    """Return the switch of a `startup.yaml`. Raises ConfigError where it is none."""
    reading = _Reading(Problems(file))
    try:
        data = yaml.load(text, Loader=_Strings)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        raise ConfigError(f"is not YAML: {getattr(error, 'problem', error)}", file=file, line=line) from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"is not YAML that is taken here: {type(error).__name__}", file=file) from None
    listed = data if isinstance(data, list) else []
    parts = [part["set"] for part in listed if isinstance(part, dict) and "set" in part]
    if not parts:
        raise ConfigError("got no `- set:`, expected NVUE's startup.yaml", file=file, line=1)
    try:
        commands = list(islice((words for part in parts for words in _paths(part, ())), MOST_COMMANDS + 1))
    except RecursionError:
        raise ConfigError("got keys within keys without end, expected commands' words", file=file) from None
    if len(commands) > MOST_COMMANDS:
        raise ConfigError(f"got more than {MOST_COMMANDS} commands", file=file)
    # cages are split before ports of them are named
    for words in sorted(commands, key=lambda words: "breakout" not in words):
        reading.take(list(words), 0)
    return reading.switch(file), reading.problems


class _Strings(yaml.CBaseLoader):
    """YAML whose scalars stay as they are written: `on` is no truth value of NVUE."""


def _paths(data: Any, head: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Commands' words, a path of keys each."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from _paths(value, (*head, str(key)))
    elif isinstance(data, list):
        for value in data:
            yield from _paths(value, head)
    else:
        yield head if isinstance(data, Mapping) or data in ("", None) else (*head, str(data))


@lru_cache(maxsize=4096)
def _words(raw: str) -> tuple[str, ...]:
    raw = re.sub(r"^\S*@\S*\$ ", "", raw.strip())  # a prompt
    try:
        return tuple(shlex.split(raw, comments=True))
    except ValueError:
        return ()


def ports_of(text: str) -> list[str]:
    """Return the ports of `swp1-4,swp6,swp7s0-3`, at most MOST_PORTS."""
    found: list[str] = []
    for part in text.split(","):
        split = re.fullmatch(r"([a-z]+)(\d{1,4})(?:-(\d{1,4}))?s(\d)(?:-(\d))?", part)
        if split:
            first, last = int(split[2]), int(split[3] or split[2])
            cages = range(first, min(last, first + MOST_PORTS) + 1)
            found += [
                f"{split[1]}{n}s{k}" for n in cages for k in range(int(split[4]), int(split[5] or split[4]) + 1)
            ]
            continue
        span = re.fullmatch(r"([a-z]+)(\d{1,4})-(?:[a-z]+)?(\d{1,4})", part)
        if span:
            found += [
                f"{span[1]}{n}" for n in range(int(span[2]), min(int(span[3]), int(span[2]) + MOST_PORTS) + 1)
            ]
        elif part:
            found.append(part)
    return found[:MOST_PORTS]


@dataclass
class _Profile:
    pfc: set[int] = field(default_factory=set)
    tx: bool = True
    rx: bool = True
    cable_m: int | None = None
    numbers: dict[str, int] = field(default_factory=dict)


@dataclass
class _WholeSwitch:
    """What commands say of no port in particular."""

    name: str = ""
    platform: str = ""
    loopback: str = ""
    asn: int | None = None
    lldp: bool | None = None


@dataclass
class _Qos:
    """Which class a packet is of, and how queues serve classes; `roce`: a mode that sets all of it."""

    trust: str | None = None
    classes: dict[int, int] = field(default_factory=dict)
    queue_of: dict[int, int] = field(default_factory=dict)
    queues: dict[int, dict[str, Any]] = field(default_factory=dict)
    roce: str = ""


@dataclass
class _Reading:
    problems: Problems
    whole: _WholeSwitch = field(default_factory=_WholeSwitch)
    qos: _Qos = field(default_factory=_Qos)
    profiles: dict[str, _Profile] = field(default_factory=dict)
    ports: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)  # of a cage that is split, by its name
    poll: int | None = None
    robust: int = 1

    def take(self, words: list[str], line: int) -> None:
        """Take one command's words, without `nv set`."""
        rules: list[tuple[str, Callable[[list[str], int], None]]] = [
            ("system hostname", self._hostname),
            ("qos roce", self._roce),
            ("qos mapping", self._mapping),
            ("qos egress-queue-mapping", self._egress_queue),
            ("qos egress-scheduler", self._scheduler),
            ("qos congestion-control", self._congestion),
            ("qos pfc-watchdog", self._watchdog),
            ("qos pfc", self._pfc),
            ("interface", self._interface),
            ("router bgp", self._bgp),
            ("vrf default router bgp neighbor", self._neighbour),
            ("service lldp", self._lldp),
        ]
        for prefix, rule in rules:
            head = prefix.split()
            if words[: len(head)] == head:
                rest = words[len(head) :]
                if rest or prefix == "qos roce":
                    rule(rest, line)
                return

    def _hostname(self, words: list[str], line: int) -> None:
        self.whole.name = words[0]

    def _roce(self, words: list[str], line: int) -> None:
        if words[:1] == ["mode"] and len(words) > 1:
            self.qos.roce = words[1].removesuffix("-single-ipool")
        elif words in (["enable", "off"], ["state", "disabled"]):
            self.qos.roce = ""
        elif words[:1] != ["cable-length"] and not self.qos.roce:
            self.qos.roce = "lossless"  # the mode of RoCE where none is said

    def _number(self, text: str, key: str, most: int, line: int, least: int = 0) -> int | None:
        return self.problems.number(text, key, least=least, most=most, line=line)

    def _mapping(self, words: list[str], line: int) -> None:
        if words[1:2] == ["trust"] and len(words) > 2:
            if words[2] not in TRUST:
                self.problems.add("range", "trust", f"got {words[2]!r}, expected l2, l3, port or both", line)
            self.qos.trust = TRUST.get(words[2], self.qos.trust)
        elif len(words) == 5 and words[1] in ("dscp", "pcp") and words[3] == "switch-priority":
            priority = self._number(words[4], "switch-priority", 7, line)
            for value in words[2].split(","):
                low, dash, high = value.partition("-")
                first = self._number(low, words[1], 63, line)
                last = self._number(high, words[1], 63, line) if dash else first
                if first is not None and last is not None and priority is not None:
                    self.qos.classes |= dict.fromkeys(range(first, last + 1), priority)

    def _egress_queue(self, words: list[str], line: int) -> None:
        if len(words) == 5 and words[1] == "switch-priority" and words[3] == "traffic-class":
            a, b = (self._number(word, "egress-queue-mapping", 7, line) for word in (words[2], words[4]))
            if a is not None and b is not None:
                self.qos.queue_of[a] = b

    def _of_classes(self, words: list[str], line: int, allowed: dict[str, int]) -> None:
        """`PROFILE traffic-class 3,4 NAME VALUE`, kept by class and name."""
        if len(words) < 5 or words[1] != "traffic-class":
            return
        for each in words[2].split(","):
            number = self._number(each, "traffic-class", 7, line)
            if number is None:
                continue
            into = self.qos.queues.setdefault(number, {})
            if words[3] in allowed:
                value = self._number(words[4], words[3], allowed[words[3]], line)
                if value is not None:
                    into[words[3]] = value
            else:
                into[words[3]] = words[4]

    def _scheduler(self, words: list[str], line: int) -> None:
        self._of_classes(words, line, {"bw-percent": 100})

    def _congestion(self, words: list[str], line: int) -> None:
        limits = {"min-threshold": MOST_BYTES, "max-threshold": MOST_BYTES, "probability": 100}
        self._of_classes(words, line, limits)

    def _watchdog(self, words: list[str], line: int) -> None:
        if words[0] == "polling-interval" and len(words) > 1:
            self.poll = self._number(words[1], "polling-interval", 5000, line, least=100)
        elif words[0] == "robustness" and len(words) > 1:
            self.robust = self._number(words[1], "robustness", 1000, line, least=1) or 1

    def _pfc(self, words: list[str], line: int) -> None:
        profile = self.profiles.setdefault(words[0], _Profile())
        if len(words) < 3:
            return
        name, value = words[1], words[2]
        if name == "switch-priority":
            profile.pfc |= self.problems.priorities(value, "switch-priority", line)
        elif name in ("tx", "rx"):
            setattr(profile, name, value in ON)
        elif name == "cable-length":
            profile.cable_m = self._number(value, name, 100_000, line, least=1)
        elif name in ("port-buffer", "xoff-threshold", "xon-threshold"):
            number = self._number(value, name, MOST_BYTES, line)
            if number is not None:
                profile.numbers[name] = number

    def _interface(self, words: list[str], line: int) -> None:
        for name in ports_of(words[0]):
            if name == "lo":
                if words[1:3] == ["ip", "address"] and len(words) > 3:
                    self.whole.loopback = words[3].partition("/")[0]
                continue
            if len(self.ports) >= MOST_PORTS and name not in self.ports:
                return
            rest = words[1:]
            if rest[:2] == ["link", "breakout"] and len(rest) > 2:
                self.parts[name] = self._number(rest[2].partition("x")[0], "breakout", 8, line, least=1) or 1
                continue
            into = self.ports.setdefault(name, {})
            if rest[:2] == ["link", "speed"] and len(rest) > 2:
                into["speed_bps"] = (self._number(rest[2].rstrip("G"), "speed", 1600, line, least=1) or 0) * 10**9
            elif rest[:2] == ["link", "mtu"] and len(rest) > 2:
                into["mtu_bytes"] = self._number(rest[2], "mtu", 9216, line, least=552)
            elif rest[:2] == ["link", "fec"] and len(rest) > 2:
                into["fec"] = rest[2]
            elif rest[:1] == ["description"] and len(rest) > 1:
                into["peer"] = rest[1]
            elif rest[:2] == ["ip", "address"] and len(rest) > 2:
                into["address"] = rest[2]
            elif rest[:3] == ["qos", "pfc", "profile"] and len(rest) > 3:
                into["profile"] = rest[3]
            elif rest[:2] == ["qos", "pfc-watchdog"]:
                into["watched"] = rest[-1] not in ("disable", "disabled", "off")

    def _bgp(self, words: list[str], line: int) -> None:
        if words[0] == "autonomous-system" and len(words) > 1:
            self.whole.asn = self._number(words[1], "autonomous-system", 2**32 - 1, line, least=1)
        elif words[0] == "router-id" and len(words) > 1 and not self.whole.loopback:
            self.whole.loopback = words[1]

    def _neighbour(self, words: list[str], line: int) -> None:
        for name in ports_of(words[0]):
            if name in self.ports or len(self.ports) < MOST_PORTS:
                self.ports.setdefault(name, {})["bgp"] = True

    def _lldp(self, words: list[str], line: int) -> None:
        self.whole.lldp = True

    # ------------------------------------------------------------------ what it comes to

    def switch(self, file: str) -> model.Switch:
        """The switch that all commands together set up."""
        roce = self.qos.roce in ("lossless", "lossy")
        queues = (ROCE_QUEUES if roce else {}) | {
            number: _queue(row, ROCE_QUEUES.get(number) if roce else None)
            for number, row in self.qos.queues.items()
        }
        maps = model.Maps(
            (ROCE_CLASSES if roce else {}) | self.qos.classes,
            {},
            (ROCE_QUEUE_OF if roce else {}) | self.qos.queue_of,
        )
        trust: Any = self.qos.trust or ("dscp" if roce else None)
        ports = {}
        for name, row in self.ports.items():
            said = {key: value for key, value in row.items() if key not in ("profile", "watched")}
            parts = self.parts.get(name.rpartition("s")[0], 1)
            link = model.PortLink(jack=_jack(name, parts), split=parts)
            port = model.Port(name, link, model.PortQos(trust=trust, maps=maps, queues=queues))
            port = grouped(port, said)
            ports[name] = self._with_pfc(port, row)
        poll = self.poll if any(row.get("watched") for row in self.ports.values()) else None
        return model.Switch(
            name=self.whole.name or file,
            box=model.SwitchBox(
                os="nvue", chip=chip_of_platform(self.whole.platform), platform=self.whole.platform
            ),
            ports=ports,
            watchdog_poll_ms=poll,
            lldp=self.whole.lldp,
            bgp=model.Bgp(asn=self.whole.asn, loopback=self.whole.loopback),
            file=file,
        )

    def _with_pfc(self, port: model.Port, row: dict[str, Any]) -> model.Port:
        name = row.get("profile", GLOBAL if GLOBAL in self.profiles else None)
        profile = self.profiles.get(name) if name else None
        if name is not None and profile is None:
            self.problems.add("reference", f"{port.name} qos pfc profile", f"got {name!r}, which nothing defines")
        lossless = self.qos.roce == "lossless" and name is None
        pfc = frozenset(profile.pfc) if profile and profile.tx else frozenset({3} if lossless else ())
        group = None if profile is None else _group(str(name), profile)
        groups = {} if group is None or profile is None else dict.fromkeys(sorted(profile.pfc), group)
        watched = bool(row.get("watched"))
        period = (self.poll or 100) * self.robust
        qos = replace(
            port.qos,
            pfc=pfc,
            pfc_receives=profile.rx if profile else True,
            groups=groups,
            watchdog=model.Watchdog(period, period) if watched else None,
        )
        return replace(port, qos=qos, link=replace(port.link, cable_m=profile.cable_m if profile else None))


def _group(name: str, profile: _Profile) -> model.Group | None:
    """Return a profile's lossless group; None where the switch derives it from the cable's length.

    A pause is sent once `xoff-threshold` of the port's buffer is taken, so that headroom is the rest of it, and
    ends `xon-threshold` below that (Cumulus Linux user guide, Quality of Service).
    """
    size, xoff = (profile.numbers.get(key) for key in ("port-buffer", "xoff-threshold"))
    if size is None or xoff is None:
        return None
    return model.Group(name, "", size, max(size - xoff, 0), xon_offset_bytes=profile.numbers.get("xon-threshold"))


def _queue(row: dict[str, Any], standard: model.Queue | None) -> model.Queue:
    """Return a queue as commands say, else as RoCE's mode has it."""
    base = standard or model.Queue()
    ecn = base.ecn
    if row.get("ecn") in ON and "min-threshold" in row and "max-threshold" in row:
        ecn = model.Ecn(row["min-threshold"], row["max-threshold"], row.get("probability", 100))
    elif "ecn" in row and row["ecn"] not in ON:
        ecn = None
    mode = row.get("mode", base.scheduler)
    weight = None if mode == "strict" else row.get("bw-percent", base.weight)
    return model.Queue(mode if mode in ("strict", "dwrr") else None, weight, ecn)


def _jack(name: str, parts: int) -> int:
    """Return a port's number, from 1, where each cage has so many; 0 where the name tells none."""
    found = re.fullmatch(r"swp(\d{1,4})(?:s(\d))?", name)
    return (int(found[1]) - 1) * parts + int(found[2] or 0) + 1 if found else 0
