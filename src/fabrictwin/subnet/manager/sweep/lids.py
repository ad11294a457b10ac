"""LIDs: who keeps which, who gets a new one, and the file that remembers them.

A port keeps, in this order: what the file or the last sweep remembers for its GUID, what it says it has (a manager
that starts again finds its predecessor's), the lowest free range. With LMC n a range is 2^n LIDs, aligned.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.process.interrupt import unfinished
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text, writing
from fabrictwin.base.whole_numbers import whole

FIRST, LAST = 0x0001, 0xBFFF


@record
class Wish:
    """A port that needs LIDs: its GUID, what it has now (0 for none), 2^lmc of them."""

    guid: int
    current: int
    lmc: int


def assign(wishes: Iterable[Wish], remembered: dict[int, int]) -> dict[int, int]:
    """The first LID of each GUID. Raises ConfigError where there are too few.

    LIDs remembered for GUIDs that are not there now stay theirs as long as there are others.
    """
    wishes = list(wishes)
    given: dict[int, int] = {}
    taken = bytearray(LAST + 1)

    def fits(lid: int, lmc: int) -> bool:
        size = 1 << lmc
        if lid < FIRST or lid % size or lid + size - 1 > LAST:
            return False
        return not any(taken[lid : lid + size])

    def take(wish: Wish, lid: int) -> None:
        size = 1 << wish.lmc
        taken[lid : lid + size] = b"\1" * size
        given[wish.guid] = lid

    for wish in wishes:
        lid = remembered.get(wish.guid, 0)
        if lid and fits(lid, wish.lmc):
            take(wish, lid)
    here = {wish.guid for wish in wishes}
    kept = [lid for guid, lid in remembered.items() if guid not in here and FIRST <= lid <= LAST]
    for wish in wishes:
        if wish.guid not in given and wish.current and fits(wish.current, wish.lmc):
            take(wish, wish.current)
    held = [lid for lid in kept if not taken[lid]]
    for lid in held:
        taken[lid] = 1
    missing = [wish for wish in wishes if wish.guid not in given]
    for attempt in (0, 1):
        at = FIRST
        still: list[Wish] = []
        for wish in missing:
            size = 1 << wish.lmc
            lid = -(-at // size) * size
            while lid + size - 1 <= LAST and any(taken[lid : lid + size]):
                lid += size
            if lid + size - 1 > LAST:
                still.append(wish)
                continue
            take(wish, lid)
            # ranges of different size interleave; only equal ones may go on from here
            at = lid + size if wish.lmc == missing[-1].lmc == missing[0].lmc else FIRST
        if still and attempt == 0:
            for lid in held:  # nobody can afford to wait for those that are away
                taken[lid] = 0
        missing = still
    if missing:
        raise ConfigError(
            f"got {len(wishes)} ports with {sum(1 << w.lmc for w in wishes)} LIDs, "
            f"expected at most {LAST - FIRST + 1} LIDs in a subnet",
            key="cluster",
        )
    return given


def read_guid2lid(path: Path) -> dict[int, int]:
    """The file as OpenSM writes it: a GUID, the first and the last LID a line. Missing is empty."""
    if not path.exists():
        if not path.absolute().parent.is_dir():
            raise ConfigError("cannot be written: its folder is not there", file=path)
        return {}
    result: dict[int, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        fields = line.split("#", 1)[0].split()
        if not fields:
            continue
        try:
            guid, first, last = (whole(field, most=2**64 - 1, base=0) for field in fields)
        except ValueError:
            raise ConfigError(
                f"got {quoted(line)}, expected a GUID and two LIDs, such as 0x0002c90300000001 0x0001 0x0001",
                file=path,
                line=number,
            ) from None
        if not FIRST <= first <= last <= LAST or not 0 < guid < 2**64:
            raise ConfigError(f"got LIDs {first} to {last}, expected {FIRST} to {LAST}", file=path, line=number)
        result[guid] = first
    return result


def write_guid2lid(path: Path, lids: dict[int, int], lmcs: dict[int, int]) -> None:
    """Replace the file in one step, so that a crash leaves the old one."""
    lines = [
        f"0x{guid:016x} 0x{lid:04x} 0x{lid + (1 << lmcs.get(guid, 0)) - 1:04x}\n"
        for guid, lid in sorted(lids.items(), key=lambda item: item[1])
    ]
    beside = path.with_name(path.name + ".new")
    with unfinished(beside), writing(path):
        beside.write_text("".join(lines), encoding="utf-8")
        beside.replace(path)
