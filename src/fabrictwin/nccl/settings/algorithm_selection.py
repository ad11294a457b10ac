"""NCCL_ALGO and NCCL_PROTO: which algorithms and protocols are allowed, for which collectives.

`Ring,Tree` allows those only, `^LL128` all but that. From 2.24 on a list may hold entries of one collective,
after an optional one for all: `ring;allreduce:tree,nvls;broadcast:^ring` (NCCL user guide, NCCL_ALGO). Before
2.24 what NCCL does not recognise is skipped without a word; from 2.24 on it is an error.
"""

from __future__ import annotations

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.nccl.settings.version import Version, version_of

COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")  # NCCL's order
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
PER_COLLECTIVE_SINCE = version_of("2.24")


@record
class Selection:
    """A list's word on each name: [collective][name] True allowed, False not, None where it says nothing."""

    text: str
    names: tuple[str, ...]
    allowed: tuple[tuple[bool | None, ...], ...]
    skipped: tuple[str, ...] = ()  # words that NCCL before 2.24 passes over

    def allows(self, collective: str, name: str) -> bool | None:
        return self.allowed[COLLECTIVES.index(collective)][self.names.index(name)]


def select(text: str, names: tuple[str, ...], *, release: Version, key: str) -> Selection:
    """Read a list. Raises ConfigError where NCCL ends with `invalid usage`."""
    table: list[list[bool | None]] = [[None] * len(names) for _ in COLLECTIVES]
    skipped: list[str] = []
    if release < PER_COLLECTIVE_SINCE:
        row = _row(text, names, skipped)
        return Selection(text, names, (row,) * len(COLLECTIVES), tuple(skipped))
    lower = [name.lower() for name in COLLECTIVES]
    for i, part in enumerate(piece for piece in text.split(";") if piece):
        # empty fields vanish, as they do for strtok
        fields = [field for field in part.split(":") if field]
        if not fields:
            continue
        if len(fields) == 1 and i > 0:
            raise ConfigError(
                f"got {part!r} after the first entry, expected a collective before it such as allreduce:{part}",
                key=key,
            )
        if len(fields) > 1 and fields[0].lower() not in lower:
            known = ", ".join(COLLECTIVES)
            hint = did_you_mean(fields[0], COLLECTIVES)
            raise ConfigError(f"got {fields[0]!r}, expected one of {known}{hint}", key=key)
        unknown: list[str] = []
        row = _row(fields[1] if len(fields) > 1 else fields[0], names, unknown)
        if unknown:
            hint = did_you_mean(unknown[0], names)
            raise ConfigError(f"got {unknown[0]!r}, expected one of {', '.join(names)}{hint}", key=key)
        for c, name in enumerate(lower):
            if len(fields) == 1 or fields[0].lower() == name:
                table[c] = list(row)
    return Selection(text, names, tuple(tuple(row) for row in table))


def _row(text: str, names: tuple[str, ...], unknown: list[str]) -> tuple[bool, ...]:
    exclude = text.startswith("^")
    row = [exclude] * len(names)
    lower = [name.lower() for name in names]
    for word in text[exclude:].split(","):
        if word.lower() in lower:
            row[lower.index(word.lower())] = not exclude
        elif word:
            unknown.append(word)
    return tuple(row)
