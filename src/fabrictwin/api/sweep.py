"""Runs over many values of a spec's keys, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.progress import silent

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.study.sweep.samples import Sampling
    from fabrictwin.study.sweep.sweep import Swept


class Sweep:
    """Every point of a sweep with its figures, or with the reason why it has none."""

    def __init__(self, detail: Swept) -> None:
        self.detail = detail

    @cached_property
    def table(self) -> Table:
        """One row a point: the value of each key, the figures, the reason of a failure."""
        return Table(self.detail.columns())

    @property
    def failures(self) -> int:
        """Points that have no answer."""
        return len(self.detail.failures)

    def save(self, path: str | Path) -> Path:
        """Write the table (.csv or .parquet), its page (.html) beside it; return the page. Raises ConfigError."""
        from fabrictwin.base.textfile import write_text
        from fabrictwin.study.sweep.sweep_page import page
        from fabrictwin.study.sweep.table_files import check_ending, write_table

        target = Path(path)
        check_ending(target)
        write_table(target, self.detail.columns())
        write_text(beside := target.with_suffix(".html"), page(self.detail))
        return beside

    def __repr__(self) -> str:
        asked = self.detail.plan
        return f"<Sweep {asked.name}: {len(asked.points):,} points over {', '.join(asked.question.keys)}>"

    def __str__(self) -> str:
        return repr(Table(self.detail.shown()))

    def _repr_html_(self) -> str:
        return Table(self.detail.shown())._repr_html_()


def sweep(
    spec: Source,
    vary: Sequence[str],
    *,
    samples: int | None = None,
    sampling: Sampling = "latin",
    seed: int = 1,
    workers: int | str | None = None,
    journal: str | Path | None = None,
    stage: Stage | None = None,
) -> Sweep:
    """Run a spec over the values of some keys.

    `vary` are axes such as `"hosts=8,16,...,128"` and `"link_rate=100 Gb/s..800 Gb/s"`: every combination,
    or `samples` of them drawn by `sampling` with `seed`. `workers` are processes (by default all processors), or
    the address of a Ray cluster. `journal` is a file that keeps what is done, so that the same sweep goes
    on after it was ended. Points that cannot be have a reason in place of figures. Raises ConfigError.
    """
    from fabrictwin.study.sweep import sweep as study

    drawn = None if samples is None else study.Drawn(samples, sampling, seed)
    asked = study.plan(load(spec), vary, drawn)
    kept = None if journal is None else Path(journal)
    return Sweep(study.sweep(asked, stage or silent, workers=workers, kept=kept))
