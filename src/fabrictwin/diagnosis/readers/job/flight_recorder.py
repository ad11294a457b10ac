"""Dumps of PyTorch's flight recorder (torch/csrc/distributed/c10d/FlightRecorder): a pickle or JSON for each rank.

Pickles are read as plain data (`interchange.plain_pickle`): a program in one is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.diagnosis.evidence import Place, Sink, Subject
from fabrictwin.interchange.plain_pickle import unpickled

KEPT_ENTRIES = 4096  # of a dump, the last ones


def recognises(head: bytes) -> bool:
    """Return true for the first bytes of a pickle of protocol 2 to 5, or of a dump as JSON."""
    if re.match(rb"\x80[\x02-\x05]", head):
        return True
    return head[:1] == b"{" and b'"entries"' in head and (b"pg_config" in head or b"collective_seq_id" in head)


def read(data: bytes, sink: Sink) -> bool:
    """Take a dump; False where the data is no dump. Raises ConfigError for what is no plain data."""
    if data[:1] == b"{":
        try:
            dump = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"is no JSON: {error}", file=sink.file) from None
    else:
        dump = unpickled(data, sink.file)
    if not isinstance(dump, Mapping) or "entries" not in dump:
        return False
    rank = _rank_of(dump, sink.file)
    about = Subject(rank=rank)
    sink.add("fr.dump", rank, about, place=Place(sink.file, 0))
    groups = dump.get("pg_config")
    if isinstance(groups, Mapping):
        for key, group in groups.items():
            if isinstance(group, Mapping):
                ranks = tuple(_ranks(group.get("ranks")))
                sink.add(
                    "fr.group", (str(key)[:80], str(group.get("desc", ""))[:80], *ranks), place=Place(sink.file, 0)
                )
    entries = dump.get("entries")
    kept = entries[-KEPT_ENTRIES:] if isinstance(entries, list) else []
    batches = Batches(kept)
    for number, entry in enumerate(kept):
        if isinstance(entry, Mapping):
            _entry(entry, number, about, sink, batches)
    return True


class Batches:
    """Sends and receives that one call issued together, which PyTorch counts among the collectives.

    `startCoalescing` raises the collectives' number before it knows what comes, so that ranks that issue fewer
    batches call the same collective by a lower number. What is issued in a batch never completes in its own
    entry (pytorch#137969): the entry that closes the batch, `nccl:coalesced`, does.
    """

    def __init__(self, entries: list[Any]) -> None:
        self._states: dict[int, str] = {}  # of members, by the place of their entries
        self._ends: set[int] = set()
        self._passed: dict[str, list[int]] = {}
        waiting: dict[tuple[str, int], list[int]] = {}
        known = [(place, entry) for place, entry in enumerate(entries) if isinstance(entry, Mapping)]
        for place, entry in known:
            at = (_group(entry), _whole(entry, "collective_seq_id"))
            if entry.get("is_p2p"):
                waiting.setdefault(at, []).append(place)
            elif at in waiting and str(entry.get("profiling_name", "")).endswith(":coalesced"):
                self._states |= dict.fromkeys(waiting.pop(at), _state(entry))
                self._ends.add(place)
                self._passed.setdefault(at[0], []).append(at[1])
        first = known[0][1] if known else {}
        # a buffer that has dropped its first entries hides how many batches there were
        self._whole = max(_whole(first, "record_id"), _whole(first, "id")) <= 0

    def ends(self, place: int) -> bool:
        """Return true for the entry that closes a batch of sends and receives."""
        return place in self._ends

    def state(self, place: int, entry: Mapping[Any, Any]) -> str:
        """State of a send or a receive: its own, or its batch's."""
        return self._states.get(place, _state(entry))

    def number(self, group: str, sequence: int) -> int:
        """The number of a collective without the batches before it; -1 where they cannot be counted."""
        passed = self._passed.get(group, [])
        if not passed:
            return sequence
        return sequence - sum(one < sequence for one in passed) if self._whole else -1


def _group(entry: Mapping[Any, Any]) -> str:
    group = entry.get("process_group")
    return str(group[0] if isinstance(group, list | tuple) and group else entry.get("pg_id", ""))[:80]


def _state(entry: Mapping[Any, Any]) -> str:
    state = str(entry.get("state", ""))[:20]
    return "completed" if entry.get("retired") else state


def _rank_of(dump: Mapping[Any, Any], file: str) -> int:
    """The rank that a dump is of: it says so, or its name ends in it."""
    rank = dump.get("rank")
    if isinstance(rank, int) or (isinstance(rank, str) and rank.isdigit()):
        return int(rank)
    found = re.search(r"(\d{1,7})(?:\.\w+)?$", file)
    return int(found[1]) if found else -1


def _ranks(value: Any) -> Iterator[int]:
    if isinstance(value, str):
        value = value[:1_000_000].strip("[]() ").split(",")
    for one in value if isinstance(value, list | tuple) else ():
        text = str(one)[:20].strip()
        if text.isdigit():
            yield int(text)


def _whole(entry: Mapping[Any, Any], key: str) -> int:
    """A whole number of an entry, which PyTorch's own analysis also takes as a string; -1 where there is none."""
    value = entry.get(key)
    if isinstance(value, str) and len(value) <= 18 and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62 else -1


def _entry(entry: Mapping[Any, Any], number: int, about: Subject, sink: Sink, batches: Batches) -> None:
    if batches.ends(number):
        return
    name = _group(entry)
    what = str(entry.get("profiling_name", ""))[:120]
    sizes, dtypes = str(entry.get("input_sizes", ""))[:400], str(entry.get("input_dtypes", ""))[:80]
    outs = str(entry.get("output_sizes", ""))[:400]
    sequence = _whole(entry, "collective_seq_id")
    if entry.get("is_p2p") or sequence < 0:
        kind, sequence, state = "fr.p2p", _whole(entry, "p2p_seq_id"), batches.state(number, entry)
    else:
        kind, sequence, state = "fr.call", batches.number(name, sequence), _state(entry)
        if sequence < 0:
            return
    value = (
        name,
        sequence,
        what,
        sizes,
        outs,
        dtypes,
        state,
        _whole(entry, "time_created_ns"),
        _whole(entry, "timeout_ms"),
    )
    sink.add(kind, value, about, place=Place(sink.file, number + 1, f"{what} {sizes} {state}"[:200]))
