"""GOAL (Hoefler, Siebert, Lumsdaine 2009), the text that LogGOPSim plays: what each rank sends and calculates.

    num_ranks 2
    rank 0 {
      l1: calc 1000 cpu 0          nanoseconds
      l2: send 10b to 1 tag 5 cpu 0 nic 0
      l2 requires l1               l2 starts when l1 has ended
      l3 irequires l2              l3 starts when l2 has started
    }

Calculations of one cpu run one after the other; a send does not wait for its receive.
"""

from __future__ import annotations

import re

from fabrictwin.base.errors import ConfigError
from fabrictwin.interchange.chakra import COMPUTE, RECEIVE, SEND, Node, order
from fabrictwin.interchange.rank_traces import RankTrace
from fabrictwin.workload.captured.captured_file import MOST_RANKS
from fabrictwin.workload.captured.captured_job import Compute, Message, Operation

PS_PER_NS = 1000
_COUNT = r"(\d{1,15})"
_RANK = re.compile(rf"rank\s+{_COUNT}\s*\{{")
_CALC = re.compile(rf"(?:(\w+)\s*:\s*)?calc\s+{_COUNT}((?:\s+cpu\s+{_COUNT})?)\s*")
_COMM = re.compile(
    rf"(?:(\w+)\s*:\s*)?(send|recv)\s+{_COUNT}b\s+(?:to|from)\s+(\d{{1,7}})((?:\s+(?:tag|cpu|nic)\s+\d{{1,15}})*)\s*"
)
_NEEDS = re.compile(r"(\w+)\s+(i?requires)\s+(\w+)\s*")


def recognises(text: str) -> bool:
    """Return true for a schedule."""
    return re.match(r"(?:\s|//[^\n]*\n|/\*.*?\*/)*num_ranks\s", text, re.S) is not None


class _Rank:
    """Labels and nodes of one rank."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.labels: dict[str, int] = {}
        self.starts: list[tuple[int, int]] = []  # irequires: (later, earlier)

    def add(self, label: str | None, node: Node) -> None:
        node.number = len(self.nodes)
        self.nodes.append(node)
        if label is not None:
            if label in self.labels:
                raise ValueError(f"got label {label} twice")
            self.labels[label] = node.number

    def need(self, later: str, earlier: str, *, start: bool) -> None:
        for label in (later, earlier):
            if label not in self.labels:
                raise ValueError(f"got label {label[:40]}, which no line before has")
        pair = self.labels[later], self.labels[earlier]
        if start:
            self.starts.append(pair)
        else:
            self.nodes[pair[0]].after.append(pair[1])


def read(text: str, file: str) -> list[RankTrace]:
    """A schedule's ranks. Raises ConfigError with the line."""
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)
    ranks: dict[int, _Rank] = {}
    world, here = 0, None
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.partition("//")[0].partition("#")[0].strip()
        try:
            if not line:
                continue
            if not world:
                found = re.fullmatch(r"num_ranks\s+(\d{1,7})", line)
                if found is None or not 0 < int(found[1]) <= MOST_RANKS:
                    raise ValueError(f"got {line[:60]!r}, expected num_ranks and 1 to {MOST_RANKS}")
                world = int(found[1])
            elif here is None:
                found = _RANK.fullmatch(line)
                if found is None or not int(found[1]) < world or int(found[1]) in ranks:
                    raise ValueError(f"got {line[:60]!r}, expected a rank below {world} that is new, and a brace")
                here = ranks[int(found[1])] = _Rank()
            elif line == "}":
                here = None
            else:
                _line(line, here, world)
        except ValueError as error:
            raise ConfigError(str(error), file=file, line=number) from None
    if here is not None or not world:
        raise ConfigError("ends within a rank" if world else "has no num_ranks", file=file)
    return [_trace(ranks.get(rank, _Rank()), rank, world, file) for rank in range(world)]


def _line(line: str, rank: _Rank, world: int) -> None:
    if found := _CALC.fullmatch(line):
        rank.add(
            found[1], Node(kind=COMPUTE, attributes={"ps": int(found[2]) * PS_PER_NS, "cpu": found[4] or "0"})
        )
    elif found := _COMM.fullmatch(line):
        peer = int(found[4])
        if peer >= world:
            raise ValueError(f"got rank {peer}, expected 0 to {world - 1}")
        options = dict(re.findall(r"(tag|cpu|nic)\s+(\d+)", found[5]))
        kind = SEND if found[2] == "send" else RECEIVE
        attributes = {"peer": peer, "bytes": int(found[3]), "tag": int(options.get("tag", 0))}
        rank.add(found[1], Node(kind=kind, attributes=attributes))
    elif found := _NEEDS.fullmatch(line):
        rank.need(found[1], found[3], start=found[2] == "irequires")
    else:
        raise ValueError(f"got {line[:60]!r}, expected calc, send, recv, requires or irequires")


def _trace(rank: _Rank, number: int, world: int, file: str) -> RankTrace:
    # what starts once another has started starts once all is there that that one waits for
    for later, earlier in rank.starts:
        rank.nodes[later].after += rank.nodes[earlier].after
    trace = RankTrace(number, world, file)
    order(rank.nodes, trace, operation=_operation, resource=_resource)
    return trace


def _resource(node: Node) -> str:
    return f"cpu {node.attributes['cpu']}" if node.kind == COMPUTE else ""


def _operation(node: Node, after: tuple[int, ...], trace: RankTrace) -> Operation:
    given = node.attributes
    if node.kind == COMPUTE:
        return Compute("calc", after, given["ps"])
    return Message(node.kind == SEND, given["peer"] - trace.rank, given["bytes"], after, given["tag"])
