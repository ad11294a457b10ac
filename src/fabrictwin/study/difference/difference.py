"""What differs between two runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from fabrictwin.base.records import record
from fabrictwin.study.difference.compared_run import LinkUse, Side

Value = TypeVar("Value")

UNCHANGED = ("name", "run.out")  # of what was asked: they change no answer
NOTHING = LinkUse(0.0, 0)
# of a training step, and of a server's users: to the first token, between tokens
WAITS = ("step_time_s", "mean_ttft_ms", "mean_tpot_ms")


@record
class Change(Generic[Value]):
    """Something by its name, as it is on both sides."""

    name: str
    before: Value
    after: Value


class Figure(Change[float | None]):
    """A figure; None where a side has none."""

    @property
    def change(self) -> float | None:
        """Change over the value before; None where that is nothing or a side is missing."""
        if self.before is None or self.after is None or self.before == 0:
            return None
        return self.after / self.before - 1

    @property
    def added(self) -> float:
        """The second side's surplus."""
        return (self.after or 0.0) - (self.before or 0.0)


class LinkChange(Change[LinkUse]):
    """A directed link that carried something on either side."""

    @property
    def added(self) -> float:
        """Utilisation that the second side has more."""
        return self.after.utilisation - self.before.utilisation


@record
class Difference:
    """All that differs, what differs most first."""

    before: Side
    after: Side
    asked: tuple[Change[Any], ...]  # keys of the specs; None where a side has none
    answer: tuple[Figure, ...]
    parts: tuple[Figure, ...]
    links: tuple[LinkChange, ...]

    @property
    def slower(self) -> float:
        """Share of the first step by which the second is longer; negative where it is shorter.

        Of servers the same of what their users wait for: the first token or the next, whichever grew more.
        """
        return max((one.change or 0.0 for one in self.waits), default=0.0)

    @property
    def waits(self) -> tuple[Figure, ...]:
        """The times that a run is judged by."""
        return tuple(one for one in self.answer if one.name in WAITS)

    @property
    def same(self) -> bool:
        """True where the answers, the parts and the links are all the same."""
        return not self.links and all(one.added == 0 for one in (*self.answer, *self.parts))


def difference(before: Side, after: Side) -> Difference:
    """Hold two sides against each other."""
    keys = [key for key in {**before.asked, **after.asked} if key not in UNCHANGED]
    links = [
        LinkChange(link, before.links.get(link, NOTHING), after.links.get(link, NOTHING))
        for link in {**before.links, **after.links}
    ]
    parts = _figures(before.parts, after.parts)
    return Difference(
        before=before,
        after=after,
        asked=tuple(
            Change(key, before.asked.get(key), after.asked.get(key))
            for key in keys
            if before.asked.get(key) != after.asked.get(key)
        ),
        answer=tuple(_figures(before.answer, after.answer)),
        parts=tuple(sorted(parts, key=lambda part: -abs(part.added))),
        links=tuple(
            sorted((one for one in links if one.before != one.after), key=lambda one: (-abs(one.added), one.name))
        ),
    )


def _figures(before: Mapping[str, float], after: Mapping[str, float]) -> list[Figure]:
    return [Figure(name, before.get(name), after.get(name)) for name in {**before, **after}]


def data(found: Difference) -> dict[str, Any]:
    """Plain data."""

    def figure(one: Figure) -> dict[str, Any]:
        return {"name": one.name, "before": one.before, "after": one.after, "change": one.change}

    return {
        "before": found.before.label,
        "after": found.after.label,
        "same": found.same,
        "slower": found.slower,
        "asked": [{"key": one.name, "before": one.before, "after": one.after} for one in found.asked],
        "answer": [figure(one) for one in found.answer],
        "parts_s": [figure(one) for one in found.parts],
        "links": [
            {
                "link": one.name,
                "utilisation": [one.before.utilisation, one.after.utilisation],
                "tx_bytes": [one.before.tx_bytes, one.after.tx_bytes],
            }
            for one in found.links
        ],
    }
