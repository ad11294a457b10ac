"""Two runs side by side, from Python."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from fabrictwin.api.answers import PagedAnswer
from fabrictwin.api.specs import Source
from fabrictwin.api.tables import Table
from fabrictwin.base.progress import silent

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.study.difference.difference import Difference as Found


class Difference(PagedAnswer):
    """What differs between two runs: in what was asked, in the answer, in the step's parts, on the links."""

    def __init__(self, detail: Found) -> None:
        self.detail = detail

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data, as `fabrictwin diff --json` prints it."""
        from fabrictwin.study.difference.difference import data

        return data(self.detail)

    @property
    def same(self) -> bool:
        """True where both runs answer the same."""
        return self.detail.same

    @property
    def slower(self) -> float:
        """Share of the first step by which the second is longer; negative where it is shorter."""
        return self.detail.slower

    @cached_property
    def asked(self) -> Table:
        """Keys of the specs whose values differ."""
        rows = [(one.name, one.before, one.after) for one in self.detail.asked]
        return Table.of_rows(("key", "before", "after"), rows)

    @cached_property
    def parts(self) -> Table:
        """Parts of the step in seconds, those that changed most first."""
        rows = [(one.name, one.before, one.after, one.added) for one in self.detail.parts]
        return Table.of_rows(("part", "before_s", "after_s", "added_s"), rows)

    @cached_property
    def links(self) -> Table:
        """Directed links whose use differs, those that changed most first."""
        rows = [
            (one.name, one.before.utilisation, one.after.utilisation, one.before.tx_bytes, one.after.tx_bytes)
            for one in self.detail.links
        ]
        names = ("link", "utilisation_before", "utilisation_after", "tx_bytes_before", "tx_bytes_after")
        return Table.of_rows(names, rows)

    def _page(self) -> str:
        from fabrictwin.study.difference.difference_text import page

        return page(self.detail)

    def __repr__(self) -> str:
        from fabrictwin.study.difference.difference_text import verdict

        return f"<Difference: {verdict(self.detail)}>"

    def __str__(self) -> str:
        from fabrictwin.study.difference.difference_text import text

        return text(self.detail)

    def _repr_html_(self) -> str:
        return self.parts._repr_html_()


def diff(before: Source, after: Source, *, stage: Stage | None = None) -> Difference:
    """Hold two runs against each other: run folders as they are, and specs, which are run.

    Raises ConfigError for what is written wrong, SimulatedError for what the simulated hardware reports.
    """
    from fabrictwin.study.difference.compared_run import load_side
    from fabrictwin.study.difference.difference import difference

    watcher = stage or silent
    return Difference(difference(load_side(_given(before), watcher), load_side(_given(after), watcher)))


def _given(source: Source) -> Any:
    from fabrictwin.api.specs import load

    return load(source) if isinstance(source, dict) else source
