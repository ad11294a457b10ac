"""Calls of collectives by group, rank and sequence number: of dumps, watchdogs and NCCL's log, in one table."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from fabrictwin.base.records import record
from fabrictwin.diagnosis.evidence import Evidence, Fact

# sizes may differ by rank: what is sent to whom is the program's own matter
UNEVEN = re.compile(r"(?i)all_?to_?all|^(?:nccl:)?(?:gather|scatter)$|_v$|coalesced|send|recv")


@record
class Call:
    """A rank's call of a collective."""

    verb: str
    sizes: str  # of what goes in, and of what comes out
    kinds: str  # data types
    done: bool
    started: bool
    fact: Fact

    def differs(self, other: Call) -> str:
        """The word for how two calls of one collective do not fit; empty where they do."""
        if self.verb != other.verb:
            return "type"
        if not UNEVEN.search(self.verb) and self.sizes != other.sizes:
            return "size"
        if self.kinds and other.kinds and self.kinds != other.kinds:
            return "data type"
        return ""


@dataclass
class Group:
    """A process group or communicator: its ranks, and each one's calls by sequence number."""

    name: str
    members: set[int] = field(default_factory=set)
    calls: dict[int, dict[int, Call]] = field(default_factory=lambda: defaultdict(dict))

    def last(self, rank: int) -> int:
        """The last sequence number that a rank has called; -1 where none."""
        return max(self.calls[rank], default=-1) if rank in self.calls else -1

    def pending(self, rank: int) -> int:
        """The first call of a rank that has not completed; -1 where all have, or it has called nothing."""
        waiting = [number for number, call in self.calls.get(rank, {}).items() if not call.done]
        return min(waiting, default=-1)


def recorded(evidence: Evidence) -> tuple[dict[str, Group], set[int]]:
    """Groups of flight recorders' dumps, and the ranks that left one."""
    groups: dict[str, Group] = {}
    for fact in evidence.of("fr.group"):
        name = str(fact.parts[0])
        group = groups.setdefault(name, Group(name))
        group.members |= {int(rank or 0) for rank in fact.parts[2:]}
    for fact in evidence.of("fr.call"):
        named, sequence, verb, sizes, outs, kinds, state, *_ = fact.parts
        group = groups.setdefault(str(named), Group(str(named)))
        call = Call(str(verb), f"{sizes} {outs}", str(kinds), state == "completed", state != "scheduled", fact)
        group.calls[fact.subject.rank][int(sequence or 0)] = call
    dumped = {fact.subject.rank for fact in evidence.of("fr.dump") if fact.subject.rank >= 0}
    for group in groups.values():
        group.members |= set(group.calls)
    return {name: group for name, group in groups.items() if group.calls}, dumped


def watched(evidence: Evidence) -> dict[str, Group]:
    """Groups of the watchdog's messages: the call in which each rank timed out."""
    groups: dict[str, Group] = {}
    said = {(fact.subject.rank, fact.parts[1]): str(fact.parts[0]) for fact in evidence.of("watchdog.group")}
    for fact in evidence.of("watchdog"):
        name, sequence, verb, size_in, size_out, _ = fact.parts
        name = name or said.get((fact.subject.rank, sequence), "")
        group = groups.setdefault(str(name), Group(str(name)))
        call = Call(str(verb), f"{size_in} {size_out}", "", False, True, fact)
        group.members.add(fact.subject.rank)
        group.calls[fact.subject.rank].setdefault(int(sequence or 0), call)
    return groups


def logged(evidence: Evidence) -> dict[str, Group]:
    """Groups of NCCL's own log of calls (subsystem COLL), by number of ranks; completion is not in it."""
    groups: dict[str, Group] = {}
    for fact in evidence.of("nccl.call"):
        number, verb, count, kind, ranks = fact.parts
        name = f"{ranks} ranks"
        group = groups.setdefault(name, Group(name))
        group.calls[fact.subject.rank][int(number or 0)] = Call(str(verb), str(count), str(kind), True, True, fact)
        group.members.add(fact.subject.rank)
    return groups
