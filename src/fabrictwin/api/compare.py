"""Fabrics side by side from Python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from fabrictwin.api.answers import Answer
from fabrictwin.api.servers.serve import is_server
from fabrictwin.api.servers.server_comparison import ServerComparison, compare_server
from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import silent
from fabrictwin.base.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.study.compare.comparison import Comparison as Found
    from fabrictwin.study.compare.curves import Curve

FABRICS = ("infiniband-ndr", "roce-400g", "roce-400g-lossy", "spectrum-x-400g", "tcp-100g")


class Comparison(Answer):
    """The same hosts and job on several fabrics, and a verdict in words."""

    def __init__(self, detail: Found, curves: tuple[Curve, ...]) -> None:
        self.detail, self.curves = detail, curves

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data, as in compare.json; units are in the keys."""
        from fabrictwin.study.compare.compare_text import data
        from fabrictwin.study.compare.curves import curve_data

        return {**data(self.detail), "curves": [curve_data(curve) for curve in self.curves]}

    @cached_property
    def fabrics(self) -> Table:
        """One row a fabric: its step without jitter and at the median and 99th percentile with it, use, cost."""
        rows = [
            (
                one.name,
                one.clean_ps / PS_PER_S,
                one.steps.p50 / PS_PER_S,
                one.steps.p99 / PS_PER_S,
                one.mfu,
                one.busiest_use * 100,
                one.per_million_tokens,
            )
            for one in self.detail.fabrics
        ]
        names = (
            "fabric",
            "clean_step_s",
            "p50_s",
            "p99_s",
            "mfu",
            "busiest_link_percent",
            "cost_per_million_tokens",
        )
        return Table.of_rows(names, rows)

    @property
    def best(self) -> str:
        """The fabric with the shortest median step."""
        return self.detail.best.name

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        return str(self.data["verdict"]["answer"])

    def save(self, folder: str | Path) -> Path:
        """Write compare.json and compare.html to a folder and return it. Raises ConfigError."""
        from fabrictwin.base.textfile import make_folder, write_text
        from fabrictwin.study.compare.compare_page import page

        path = Path(folder)
        make_folder(path)
        write_text(path / "compare.json", self.json())
        write_text(path / "compare.html", page(self.detail, self.curves))
        return path

    def __repr__(self) -> str:
        steps = ", ".join(f"{one.name} {format_time(round(one.steps.p50))}" for one in self.detail.fabrics)
        return f"<Comparison {self.detail.name}: {steps}>"

    def __str__(self) -> str:
        from fabrictwin.study.compare.compare_text import text
        from fabrictwin.study.compare.curves import curve_text

        return "\n".join([text(self.detail), *(curve_text(curve) for curve in self.curves)])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.verdict)}</p>{self.fabrics._repr_html_()}"


class Working(TypedDict, total=False):
    """Who works, and who is told of it."""

    workers: int | str | None  # processes that work at once; 1 if left out, all processors for None
    stage: Stage | None


def compare(
    spec: Source,
    fabrics: Sequence[str] = FABRICS,
    *,
    presets: str | Path | None = None,
    vary: Sequence[str] = (),
    seeds: Sequence[int] = (1, 2),
    prices: str | Path | None = None,
    years: float = 4.0,
    **working: Unpack[Working],
) -> Comparison | ServerComparison:
    """Play the hosts and job of a spec, or its server, on several fabrics.

    `fabrics` are presets of the catalog or of a file `presets`; `vary` are curves such as
    `"cluster.hosts.count=8,16,32"`; `seeds` are of the cuts that are played packet by packet, none skips them;
    `prices` is a price book over the catalog's, `years` how long equipment is used, `workers` processes that
    work at once. Raises ConfigError.
    """
    from fabrictwin.catalog.price_book import price_book
    from fabrictwin.study.compare import comparison
    from fabrictwin.study.compare.curves import parse
    from fabrictwin.study.compare.curves import vary as curve_over
    from fabrictwin.study.compare.fabrics import own_presets

    watcher = working.get("stage") or silent
    read = load(spec)
    own = {} if presets is None else own_presets(Path(presets))
    for one in vary:
        parse(one)  # before minutes of work, not after
    book = price_book(None if prices is None else Path(prices))
    if is_server(read):
        if vary:
            raise ConfigError("got a server, expected none: `fabrictwin sweep` varies its keys", key="--vary")
        return compare_server(read, fabrics, book=book, own=own, years=years, stage=watcher)
    found = comparison.compare(
        read,
        fabrics,
        book=book,
        own=own,
        seeds=seeds,
        years=years,
        stage=watcher,
        workers=working.get("workers", 1),
    )
    return Comparison(found, tuple(curve_over(read, one, fabrics, own, watcher) for one in vary))
