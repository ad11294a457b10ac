"""Shell commands about adapters as a host: mlnx_qos, cma_roce_mode, sysfs, ethtool, setpci, mlxconfig, nmcli."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.grouped import grouped
from fabrictwin.configuration.model.hosts import Adapter, Host, Kernel
from fabrictwin.configuration.readers.problems import Problems

MOST_BYTES = 2**32
_GUARD = re.compile(r"\[ \"\$\(hostname(?: -s)?\)\" = \"?([A-Za-z0-9._-]+)\"? \]")
_HEADING = re.compile(r"#\s+([A-Za-z0-9_.-]+), ([A-Za-z0-9_.-]+)(?:, to (\S+))?$")
_ECN = re.compile(r"/sys/class/net/([^/]+)/ecn/roce_(np|rp)/(?:enable/(\d)|(cnp_dscp|cnp_802p_prio))$")
_CLASS = re.compile(r"/sys/class/infiniband/([^/]+)/tc/\d+/traffic_class$")
COMMANDS = (
    "mlnx_qos",
    "cma_roce_mode",
    "cma_roce_tos",
    "mlxconfig",
    "ethtool",
    "setpci",
    "nmcli",
    "ip",
    "systemctl",
    "modprobe",
    "echo",
    "export",
)


def read_script(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return what a script sets up; `host` is its name where it says none. Raises ConfigError for an empty one."""
    reading = _Reading(Problems(file))
    for line, raw in enumerate(text.splitlines(), 1):
        reading.take(raw.strip(), line)
    if not reading.taken:
        raise ConfigError("got no command about adapters, expected mlnx_qos and the like", file=file, line=1)
    return reading.host(host, file), reading.problems


_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(\S*)")
_AROUND = ("sudo", "do", "then", "else", "if", "while", "!", "time", "nohup", "exec")


@lru_cache(maxsize=4096)  # hosts of a cluster have most lines in common
def commands_of(raw: str) -> tuple[tuple[str, ...], ...]:
    """Return the words of a line's commands, without what is around them: sudo, a loop's and a condition's words.

    A pipe into `tee FILE` is the same as a redirection into it. Raises ValueError for quotes that do not end.
    """
    lexer = shlex.shlex(raw, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word and not word.strip(";&|"):
            found.append([])
        elif re.fullmatch(r">[^>&].*", word):
            found[-1] += [">", word[1:]]
        elif found[-1] or not (word in _AROUND or word.startswith("-")):  # options of sudo
            found[-1].append(word)
    commands: list[list[str]] = []
    for words in found:
        while len(words) > 1 and _ASSIGNED.fullmatch(words[0]):
            words = words[1:]  # the environment of one command
        if words[:1] == ["tee"] and commands and len(words) > 1:
            commands[-1] += [">", *[word for word in words[1:] if not word.startswith("-")][:1]]
        elif words:
            commands.append(words)
    return tuple(map(tuple, commands))


@dataclass
class _WholeHost:
    """What lines say of no adapter in particular."""

    name: str = ""
    services: dict[str, bool] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    nccl: dict[str, str] = field(default_factory=dict)
    acs_disabled: bool = False


@dataclass
class _Reading:
    problems: Problems
    taken: int = 0
    adapters: dict[str, Adapter] = field(default_factory=dict)  # by netdev or device
    netdev_of: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)  # of the shell, as far as they are plain values
    whole: _WholeHost = field(default_factory=_WholeHost)

    def take(self, raw: str, line: int) -> None:
        """Take one line."""
        guard = _GUARD.search(raw)
        if guard:
            self.whole.name = guard[1]
            return
        heading = _HEADING.match(raw)
        if heading:
            device, netdev = heading[1], heading[2]
            self.netdev_of[device] = netdev
            self._set(device, netdev=netdev, device=device, peer=heading[3] or "")
            return
        if raw.startswith("#") or not raw:
            return
        if "ECAP_ACS+6.w=0" in raw or "ECAP_ACS+0x6.w=0" in raw:
            self.whole.acs_disabled, self.taken = True, self.taken + 1
            return
        raw = re.sub(r"\$\(basename \$\(readlink ([^)]*)\)\)", r"\1", raw)
        raw = re.sub(r"\$\{?(\w+)\}?", lambda found: self.variables.get(found[1], found[0]), raw)
        try:
            commands = commands_of(raw)
        except ValueError:
            self.problems.add("syntax", raw[:40], "got quotes that do not end", line)
            return
        for words in map(list, commands):
            rule = self._rules().get(words[0])
            if rule is not None:
                self.taken += 1
                rule(words[1:], line)
            elif len(words) == 1 and (assigned := _ASSIGNED.fullmatch(words[0])):
                self.variables[assigned[1]] = assigned[2]

    def _rules(self) -> dict[str, Callable[[list[str], int], None]]:
        return {
            "mlnx_qos": self._mlnx_qos,
            "cma_roce_mode": self._roce_mode,
            "cma_roce_tos": self._roce_tos,
            "echo": self._echo,
            "ethtool": self._ethtool,
            "setpci": self._setpci,
            "mlxconfig": self._mlxconfig,
            "systemctl": self._systemctl,
            "modprobe": self._modprobe,
            "nmcli": self._nmcli,
            "ip": self._ip,
            "export": self._export,
        }

    def _key(self, name: str) -> str:
        return self.netdev_of.get(name, name)

    def _set(self, name: str, **values: Any) -> None:
        key = self._key(name)
        old = self.adapters.get(key) or Adapter("", netdev=key if key == name and "device" not in values else "")
        self.adapters[key] = grouped(old, values)

    def _option(self, words: list[str], *names: str) -> str | None:
        for at, word in enumerate(words):
            head, equals, value = word.partition("=")
            if head in names:
                if equals:
                    return value
                return words[at + 1] if at + 1 < len(words) else None
        return None

    def _mlnx_qos(self, words: list[str], line: int) -> None:
        dev = self._option(words, "-i", "--interface")
        if dev is None:
            self.problems.add("syntax", "mlnx_qos", "got no -i, expected an interface", line)
            return
        self._set(dev)
        more: dict[str, Any] = {}
        key = f"mlnx_qos {dev}"
        trust = self._option(words, "--trust")
        if trust is not None:
            if trust not in ("dscp", "pcp"):
                self.problems.add("range", key, f"got --trust {trust!r}, expected dscp or pcp", line)
            else:
                more["trust"] = trust
        pfc = self._option(words, "-f", "--pfc")
        if pfc is not None:
            more["pfc"] = self.problems.switches(pfc, f"{key} --pfc", line)
        mapped = self._option(words, "--dscp2prio")
        if mapped is not None:
            more |= self._mapped(dev, mapped, line)
        for option, name, most in (
            ("--prio2buffer", "priority_to_buffer", 7),
            ("--buffer_size", "buffer_bytes", MOST_BYTES),
            ("--tcbw", "weights", 100),
        ):
            text = self._option(words, option, "-t") if option == "--tcbw" else self._option(words, option)
            if text is not None:
                more[name] = self.problems.eight(text, f"{key} {option}", most=most, line=line)
        text = self._option(words, "-p", "--prio_tc")
        if text is not None:
            more["priority_to_tc"] = self.problems.eight(text, f"{key} --prio_tc", most=7, line=line)
        text = self._option(words, "-s", "--tsa")
        if text is not None:
            more["scheduler"] = tuple(part.strip() for part in text.split(","))
        text = self._option(words, "--cable_len")
        if text is not None:
            more["cable_m"] = self.problems.number(text, f"{key} --cable_len", most=100_000, line=line)
        self._set(dev, **more)

    def _mapped(self, dev: str, text: str, line: int) -> dict[str, Any]:
        parts = [part.strip().strip("'\"") for part in text.split(",")]
        if len(parts) != 3 or parts[0] not in ("set", "del"):
            self.problems.add(
                "syntax", f"mlnx_qos {dev} --dscp2prio", f"got {text!r}, expected set,DSCP,PRIORITY", line
            )
            return {}
        dscp = self.problems.number(parts[1], "--dscp2prio", most=63, line=line)
        priority = self.problems.number(parts[2], "--dscp2prio", most=7, line=line)
        known = dict(self.adapters[self._key(dev)].qos.dscp_to_priority)
        if dscp is not None and priority is not None:
            if parts[0] == "set":
                known[dscp] = priority
            else:
                known.pop(dscp, None)
        return {"dscp_to_priority": known}

    def _roce_mode(self, words: list[str], line: int) -> None:
        device, mode = self._option(words, "-d"), self._option(words, "-m")
        if device is not None and mode is not None:
            self._set(
                device,
                device=device,
                roce_mode=self.problems.number(mode, "cma_roce_mode", least=1, most=2, line=line),
            )

    def _roce_tos(self, words: list[str], line: int) -> None:
        device, tos = self._option(words, "-d"), self._option(words, "-t")
        if device is not None and tos is not None:
            self._set(device, device=device, tos=self.problems.number(tos, "cma_roce_tos", most=255, line=line))

    def _echo(self, words: list[str], line: int) -> None:
        if len(words) < 3 or words[1] != ">":
            return
        value, path = words[0], words[2]
        tc, ecn = _CLASS.match(path), _ECN.match(path)
        if tc:
            number = self.problems.number(value.removeprefix("tclass="), "traffic_class", most=255, line=line)
            self._set(tc[1], device=tc[1], traffic_class=number)
        elif ecn:
            self._set_ecn(ecn, value, line)

    def _set_ecn(self, ecn: re.Match[str], value: str, line: int) -> None:
        dev, side, priority, cnp = ecn.groups()
        if cnp == "cnp_dscp":
            self._set(dev, cnp_dscp=self.problems.number(value, cnp, most=63, line=line))
        elif cnp:
            self._set(dev, cnp_priority=self.problems.number(value, cnp, most=7, line=line))
        else:
            name = "ecn_notification" if side == "np" else "ecn_reaction"
            self._set(dev)
            known = getattr(self.adapters[self._key(dev)].roce, name) or frozenset()
            which = frozenset({int(priority)})
            self._set(dev, **{name: known | which if value == "1" else known - which})

    def _ethtool(self, words: list[str], line: int) -> None:
        if len(words) < 2:
            return
        flag, dev = words[0], words[1]
        pairs = dict(zip(words[2::2], words[3::2], strict=False))
        if flag in ("-A", "--pause") and pairs:
            self._set(dev, global_pause="on" in (pairs.get("rx"), pairs.get("tx")))
        elif flag in ("-G", "--set-ring") and pairs:
            for name in ("rx", "tx"):
                if name in pairs:
                    self._set(
                        dev, **{f"ring_{name}": self.problems.number(pairs[name], "ring", most=1 << 20, line=line)}
                    )

    def _setpci(self, words: list[str], line: int) -> None:
        where = self._option(words, "-s") or ""
        device = re.search(r"/sys/class/infiniband/([^/]+)/", where)
        code = re.search(r"CAP_EXP\+(?:0x)?8\.w=([0-9a-fA-F]{1,4})(?::([0-9a-fA-F]{1,4}))?", " ".join(words))
        if device and code:
            self._set(device[1], device=device[1], max_read_request=128 << (int(code[1], 16) >> 12 & 7))

    def _mlxconfig(self, words: list[str], line: int) -> None:
        device = self._option(words, "-d")
        if device is None or "set" not in words:
            return
        pairs = dict(word.split("=", 1) for word in words[words.index("set") + 1 :] if "=" in word)
        self._set(device, device=device)
        known = self.adapters[self._key(device)].card.firmware
        self._set(device, firmware={**known, **pairs})

    def _systemctl(self, words: list[str], line: int) -> None:
        names = [word for word in words[1:] if not word.startswith("-")]
        if words and words[0] in ("enable", "disable", "start", "stop", "mask"):
            for name in names:
                self.whole.services[name.removesuffix(".service")] = words[0] in ("enable", "start")

    def _modprobe(self, words: list[str], line: int) -> None:
        self.whole.modules += [word.replace("-", "_") for word in words if not word.startswith("-")]

    def _nmcli(self, words: list[str], line: int) -> None:
        if "con-name" in words and "ifname" in words:
            dev = self._option(words, "ifname")
            if dev:
                kind = "infiniband" if "infiniband" in words else "ethernet"
                self.netdev_of[f"@{self._option(words, 'con-name')}"] = dev
                self._set(dev, technology=kind)
        elif "modify" in words and words.index("modify") + 1 < len(words):
            dev = self.netdev_of.get(f"@{words[words.index('modify') + 1]}")
            if dev is not None:
                self._modify(dev, words, line)

    def _modify(self, dev: str, words: list[str], line: int) -> None:
        for name in ("ethernet.mtu", "802-3-ethernet.mtu", "infiniband.mtu"):
            text = self._option(words, name)
            if text is not None:
                self._set(dev, mtu_bytes=self.problems.number(text, name, least=68, most=65520, line=line))
        address = self._option(words, "ipv4.addresses")
        if address is not None:
            self._set(dev, address=address)
        mode = self._option(words, "infiniband.transport-mode")
        if mode in ("datagram", "connected"):
            self._set(dev, ipoib_mode=mode)

    def _ip(self, words: list[str], line: int) -> None:
        dev, mtu = self._option(words, "dev"), self._option(words, "mtu")
        if words[:2] == ["link", "set"] and mtu is not None:
            dev = dev or words[2]
            self._set(dev, mtu_bytes=self.problems.number(mtu, f"{dev} mtu", least=68, most=65520, line=line))

    def _export(self, words: list[str], line: int) -> None:
        for word in words:
            name, equals, value = word.partition("=")
            if equals and name.startswith("NCCL_"):
                self.whole.nccl[name] = value

    def host(self, name: str, file: str) -> Host:
        """The host that all lines together set up."""
        adapters = {}
        for key, adapter in self.adapters.items():
            if self.whole.acs_disabled:
                adapter = grouped(adapter, {"acs_disabled": True})
            classless = adapter.qos.trust is None and adapter.qos.pfc is None
            if classless and adapter.card.firmware.get("LINK_TYPE_P1") == "IB":
                adapter = grouped(adapter, {"technology": "infiniband"})
            adapters[adapter.device or key] = adapter
        return Host(
            name=self.whole.name or name,
            adapters=adapters,
            services=self.whole.services,
            kernel=Kernel(modules=tuple(self.whole.modules)),
            nccl=self.whole.nccl,
            file=file,
        )
