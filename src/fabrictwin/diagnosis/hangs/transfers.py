"""Sends and receives of flight recorders' dumps that wait for their other side."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fabrictwin.diagnosis.evidence import Evidence
from fabrictwin.diagnosis.hangs.calls import Call
from fabrictwin.diagnosis.hangs.waiting import Wait

_PAIR = re.compile(r"(send|recv) (\d{1,7})(->|<-)(\d{1,7})$")


def transfer_waits(evidence: Evidence) -> Iterator[Wait]:
    """The first pending transfer of each pair of ranks whose other side has not called its own.

    PyTorch names a transfer's ranks within the group: the group's members, in order, say which they are.
    """
    members = {
        str(fact.parts[0]): sorted(int(rank or 0) for rank in fact.parts[2:]) for fact in evidence.of("fr.group")
    }
    pending: dict[tuple[str, int, int], dict[int, Wait]] = {}
    for fact in evidence.of("fr.p2p"):
        name, sequence, verb, sizes, outs, kinds, state, *_ = fact.parts
        found = _PAIR.search(str(verb))
        if state == "completed" or found is None:
            continue
        ranks = members.get(str(name)) or list(range(1 << 10))
        first, second = int(found[2]), int(found[4])
        if max(first, second) >= len(ranks):
            continue
        pair = (ranks[first], ranks[second]) if found[3] == "->" else (ranks[second], ranks[first])
        other = pair[1] if found[1] == "send" else pair[0]
        rank = fact.subject.rank
        call = Call(str(verb), f"{sizes} {outs}", str(kinds), False, state != "scheduled", fact)
        wait = Wait(rank, str(name), int(sequence or 0), call, frozenset({other}))
        pending.setdefault((str(name), *pair), {}).setdefault(rank, wait)
    for sides in pending.values():
        if len(sides) == 1:
            yield from sides.values()
