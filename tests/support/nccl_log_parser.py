"""Reads NCCL_DEBUG=INFO logs as tools for real machines do: by the formats, knowing nothing of the twin."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

VERSION = re.compile(r"^NCCL version (\d+)\.(\d+)\.(\d+)\+cuda(\d+\.\d+)$")
_THREAD = r"^(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) "
WARN = re.compile(_THREAD + r"\[\d+\] (?P<place>\S+).* NCCL WARN (?P<text>.*)$")
INFO = re.compile(_THREAD + r"\[(?P<dev>\d+)\] NCCL INFO (?P<text>.*)$")


@dataclass
class Via:
    channel: int
    connection: int
    source: int
    target: int
    side: str
    transport: str
    detail: str
    proxy: int | None
    gdr: bool
    shared: bool


@dataclass
class Log:
    """What was read. `unread` are INFO lines of which no format is known."""

    version: str = ""
    hosts: set[str] = field(default_factory=set)
    processes: set[tuple[str, int]] = field(default_factory=set)
    ranks: dict[int, dict[str, int]] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    complete: set[int] = field(default_factory=set)
    bootstrap: list[tuple[str, str]] = field(default_factory=list)
    adapters: list[list[str]] = field(default_factory=list)
    interfaces: list[list[str]] = field(default_factory=list)
    network: set[str] = field(default_factory=set)
    no_device: int = 0
    gdr: dict[str, bool] = field(default_factory=dict)
    whole_rings: dict[int, list[int]] = field(default_factory=dict)
    rings: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    trees: dict[tuple[int, int], tuple[list[int], int]] = field(default_factory=dict)
    via: list[Via] = field(default_factory=list)
    counts: set[tuple[int, ...]] = field(default_factory=set)
    patterns: list[tuple[str, ...]] = field(default_factory=list)
    thresholds: set[tuple[int, ...]] = field(default_factory=set)
    choices: list[tuple[str, ...]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def parse(text: str) -> Log:
    log = Log()
    for line in text.splitlines():
        if (found := VERSION.match(line)) is not None:
            log.version = ".".join(found.groups()[:3])
        elif (found := WARN.match(line)) is not None:
            log.warnings.append(found["text"])
        elif (found := INFO.match(line)) is not None:
            log.hosts.add(found["host"])
            log.processes.add((found["host"], int(found["pid"])))
            _info(log, found["text"])
    return log


_Read = Callable[[Log, re.Match[str]], None]
_FORMATS: list[tuple[re.Pattern[str], _Read]] = []  # of INFO lines, in the order in which they are tried


def says(pattern: str) -> Callable[[_Read], _Read]:
    """Have a function read the INFO lines of a format."""

    def register(read: _Read) -> _Read:
        _FORMATS.append((re.compile(pattern), read))
        return read

    return register


def _info(log: Log, text: str) -> None:
    for pattern, read in _FORMATS:
        if (m := pattern.search(text)) is not None:
            read(log, m)
            return
    log.unread.append(text)


@says(
    r"comm (0x[0-9a-f]+) rank (\d+) n[rR]anks (\d+) (?:nNodes (\d+) localRanks (\d+) localRank (\d+) MNNVL (\d)"
    r"|cudaDev (\d+) nvmlDev (\d+) busId ([0-9a-f]+) commId (0x[0-9a-f]+) - Init (START|COMPLETE))$"
)
def _communicator(log: Log, m: re.Match[str]) -> None:
    rank = int(m[2])
    if m[12]:
        (log.started if m[12] == "START" else log.complete).add(rank)
    else:
        names = ("nRanks", "nNodes", "localRanks", "localRank", "MNNVL")
        log.ranks[rank] = dict(zip(names, (int(m[i]) for i in range(3, 8)), strict=True))


@says(r"^NET/IB : Using((?: \[\d+\]\S+:\d+/(?:IB|RoCE))+) (\[RO\])?; OOB (\S+):([\d.]+)<\d+>$")
def _adapters(log: Log, m: re.Match[str]) -> None:
    log.adapters.append(re.findall(r"\](\S+)", m[1]))


@says(r"^NET/Socket : Using((?: \[\d+\]\S+:[\d.]+<\d+>)+)$")
def _interfaces(log: Log, m: re.Match[str]) -> None:
    log.interfaces.append(re.findall(r"\](\S+?):", m[1]))


@says(r"^Bootstrap ?: Using (\S+):([\d.]+)<\d+>$")
def _bootstrap(log: Log, m: re.Match[str]) -> None:
    log.bootstrap.append((m[1], m[2]))


@says(r"^NET/IB : No device found\.$")
def _no_device(log: Log, m: re.Match[str]) -> None:
    log.no_device += 1


@says(r"^Using network .*?(\S+)\s*$")
def _network(log: Log, m: re.Match[str]) -> None:
    log.network.add(m[1])


@says(r"^NET/IB : GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '(\S+)'$")
def _gpudirect(log: Log, m: re.Match[str]) -> None:
    log.gdr[m[3]] = m[1] == "Enabled"


@says(r"^Channel (\d+)/(\d+) :((?: +\d+)+)$")
def _whole_ring(log: Log, m: re.Match[str]) -> None:
    log.whole_rings[int(m[1])] = [int(rank) for rank in m[3].split()]


@says(r"^Ring (\d+) : (\d+) -> (\d+) -> (\d+)$")
def _ring(log: Log, m: re.Match[str]) -> None:
    log.rings[int(m[1]), int(m[3])] = (int(m[2]), int(m[4]))


@says(r"^Trees \[.*")
def _trees(log: Log, m: re.Match[str]) -> None:
    for channel, a, b, c, rank, up in re.findall(r"\[(\d+)\] (-?\d+)/(-?\d+)/(-?\d+)->(\d+)->(-?\d+)", m[0]):
        log.trees[int(channel), int(rank)] = ([int(a), int(b), int(c)], int(up))


@says(
    r"^Channel (\d+)(?:/(\d+))? : (\d+)\[(\w+)\] -> (\d+)\[(\w+)\](?: \[(send|receive)\])? via "
    r"(P2P|SHM|NET)/(direct pointer|[^\s(]*)(?:\((\d+)\))?(\S*)$"
)
def _via(log: Log, m: re.Match[str]) -> None:
    rest = m[9] + m[11]
    log.via.append(
        Via(
            channel=int(m[1]),
            connection=int(m[2] or 0),
            source=int(m[3]),
            target=int(m[5]),
            side=m[7] or "",
            transport=m[8],
            detail=m[9],
            proxy=int(m[10]) if m[10] else None,
            gdr="GDRDMA" in rest,
            shared=rest.endswith("/Shared"),
        )
    )


@says(
    r"^(\d+) coll channels,(?: (\d+) collnet channels,)? (\d+) nvls channels, (\d+) p2p channels, "
    r"(\d+) p2p channels per peer$"
)
def _counts(log: Log, m: re.Match[str]) -> None:
    log.counts.add(tuple(int(x) for x in m.groups() if x is not None))


@says(r"^Pattern (\d), crossNic (\d), nChannels (\d+), bw ([\d.]+)/([\d.]+), type (\w+)/(\w+), sameChannels (\d)$")
def _pattern(log: Log, m: re.Match[str]) -> None:
    log.patterns.append(m.groups())


@says(r"^threadThresholds (\d+)/(\d+)/(\d+) \| (\d+)/(\d+)/(\d+) \| (\d+) \| (\d+)$")
def _thresholds(log: Log, m: re.Match[str]) -> None:
    log.thresholds.add(tuple(int(x) for x in m.groups()))


@says(r"^(?:(\w+): )?(\d+) Bytes -> Algo (\d+) proto (\d+) time ([\d.]+)$")
@says(r"^(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}$")
def _choice(log: Log, m: re.Match[str]) -> None:
    log.choices.append(tuple("" if x is None else x for x in m.groups()))


@says(r"^(NCCL_\w+) set (?:by environment )?to (.*)$")
def _environment(log: Log, m: re.Match[str]) -> None:
    log.environment[m[1]] = m[2]


@says(r"^(Connected |P2P Chunksize|cudaDriver|NVLS |NET/Plugin|Initialized NET|=+)")
def _said(log: Log, m: re.Match[str]) -> None:
    log.said.append(m.string)


@says(r"^ ?\d+ : ?(NET|GPU)/")
@says(r"^ *(Algorithm|Protocol|Max NThreads|\w+) +\|")
@says(r"^\w+: opCount [0-9a-f]+ sendbuff 0x[0-9a-f]+ ")
def _passed_over(log: Log, m: re.Match[str]) -> None:
    """Pass over rows of tables, and calls."""
