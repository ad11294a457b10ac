"""Reads NCCL_DEBUG=INFO logs as tools for real machines do: by the formats, knowing nothing of the twin."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

INFO = re.compile(r"^(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) \[(?P<dev>\d+)\] NCCL INFO (?P<text>.*)$")
WARN = re.compile(r"^(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) \[\d+\] (?P<place>\S+).* NCCL WARN (?P<text>.*)$")
VERSION = re.compile(r"^NCCL version (\d+)\.(\d+)\.(\d+)\+cuda(\d+\.\d+)$")
COMM = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d+) n[rR]anks (\d+) (?:nNodes (\d+) localRanks (\d+) localRank (\d+) MNNVL (\d)"
    r"|cudaDev (\d+) nvmlDev (\d+) busId ([0-9a-f]+) commId (0x[0-9a-f]+) - Init (START|COMPLETE))$"
)
USING = re.compile(r"^NET/IB : Using((?: \[\d+\]\S+:\d+/(?:IB|RoCE))+) (\[RO\])?; OOB (\S+):([\d.]+)<\d+>$")
SOCKET = re.compile(r"^NET/Socket : Using((?: \[\d+\]\S+:[\d.]+<\d+>)+)$")
BOOTSTRAP = re.compile(r"^Bootstrap ?: Using (\S+):([\d.]+)<\d+>$")
WHOLE_RING = re.compile(r"^Channel (\d+)/(\d+) :((?: +\d+)+)$")
RING = re.compile(r"^Ring (\d+) : (\d+) -> (\d+) -> (\d+)$")
TREE = re.compile(r"\[(\d+)\] (-?\d+)/(-?\d+)/(-?\d+)->(\d+)->(-?\d+)")
VIA = re.compile(
    r"^Channel (\d+)(?:/(\d+))? : (\d+)\[(\w+)\] -> (\d+)\[(\w+)\](?: \[(send|receive)\])? via "
    r"(P2P|SHM|NET)/(direct pointer|[^\s(]*)(?:\((\d+)\))?(\S*)$"
)
COUNTS = re.compile(
    r"^(\d+) coll channels,(?: (\d+) collnet channels,)? (\d+) nvls channels, (\d+) p2p channels, "
    r"(\d+) p2p channels per peer$"
)
PATTERN = re.compile(
    r"^Pattern (\d), crossNic (\d), nChannels (\d+), bw ([\d.]+)/([\d.]+), type (\w+)/(\w+), sameChannels (\d)$"
)
THRESHOLDS = re.compile(r"^threadThresholds (\d+)/(\d+)/(\d+) \| (\d+)/(\d+)/(\d+) \| (\d+) \| (\d+)$")
CHOICE = re.compile(r"^(?:(\w+): )?(\d+) Bytes -> Algo (\d+) proto (\d+) time ([\d.]+)$")
NAMED_CHOICE = re.compile(r"^(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}$")
GDR = re.compile(r"^NET/IB : GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '(\S+)'$")


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


def _info(log: Log, text: str) -> None:
    if (m := COMM.search(text)) is not None:
        rank = int(m[2])
        if m[12]:
            (log.started if m[12] == "START" else log.complete).add(rank)
        else:
            names = ("nRanks", "nNodes", "localRanks", "localRank", "MNNVL")
            log.ranks[rank] = dict(zip(names, (int(m[i]) for i in range(3, 8)), strict=True))
    elif (m := USING.match(text)) is not None:
        log.adapters.append(re.findall(r"\](\S+)", m[1]))
    elif (m := SOCKET.match(text)) is not None:
        log.interfaces.append(re.findall(r"\](\S+?):", m[1]))
    elif (m := BOOTSTRAP.match(text)) is not None:
        log.bootstrap.append((m[1], m[2]))
    elif text == "NET/IB : No device found.":
        log.no_device += 1
    elif text.startswith("Using network "):
        log.network.add(text.split()[-1])
    elif (m := GDR.match(text)) is not None:
        log.gdr[m[3]] = m[1] == "Enabled"
    elif (m := WHOLE_RING.match(text)) is not None:
        log.whole_rings[int(m[1])] = [int(rank) for rank in m[3].split()]
    elif (m := RING.match(text)) is not None:
        log.rings[int(m[1]), int(m[3])] = (int(m[2]), int(m[4]))
    elif text.startswith("Trees ["):
        for channel, a, b, c, rank, up in TREE.findall(text):
            log.trees[int(channel), int(rank)] = ([int(a), int(b), int(c)], int(up))
    elif (m := VIA.match(text)) is not None:
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
    elif (m := COUNTS.match(text)) is not None:
        log.counts.add(tuple(int(x) for x in m.groups() if x is not None))
    elif (m := PATTERN.match(text)) is not None:
        log.patterns.append(m.groups())
    elif (m := THRESHOLDS.match(text)) is not None:
        log.thresholds.add(tuple(int(x) for x in m.groups()))
    elif (m := CHOICE.match(text)) is not None or (m := NAMED_CHOICE.match(text)) is not None:
        log.choices.append(tuple("" if x is None else x for x in m.groups()))
    elif (m := re.match(r"^(NCCL_\w+) set (?:by environment )?to (.*)$", text)) is not None:
        log.environment[m[1]] = m[2]
    elif re.match(r"^(Connected |P2P Chunksize|cudaDriver|NVLS |NET/Plugin|Initialized NET|=+)", text):
        log.said.append(text)
    elif not re.match(r"^ ?\d+ : ?(NET|GPU)/| *(Algorithm|Protocol|Max NThreads|\w+) +\|", text) and not re.match(
        r"^\w+: opCount [0-9a-f]+ sendbuff 0x[0-9a-f]+ ", text
    ):
        log.unread.append(text)
