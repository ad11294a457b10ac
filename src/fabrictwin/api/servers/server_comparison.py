"""A server on several fabrics, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabrictwin.api.answers import Answer
from fabrictwin.api.tables import Table

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.catalog import FabricPreset
    from fabrictwin.catalog.price_book import PriceBook
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.study.servers.fabrics import ServerComparison as FoundFabrics


class ServerComparison(Answer):
    """A server on several fabrics, and a verdict in words."""

    def __init__(self, detail: FoundFabrics) -> None:
        self.detail = detail

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data, as in compare.json; units are in the keys."""
        from fabrictwin.study.servers.fabrics import comparison_data

        return comparison_data(self.detail)

    @cached_property
    def fabrics(self) -> Table:
        """One row a fabric: latencies, tokens a second, the share between GPUs, money and energy of tokens."""
        names = {
            "name": "fabric",
            "mean_ttft_ms": "mean_ttft_ms",
            "mean_tpot_ms": "mean_tpot_ms",
            "p99_itl_ms": "p99_itl_ms",
            "output_throughput": "output_tokens_per_s",
            "share_between_gpus": "share_between_gpus",
            "per_million_tokens": "cost_per_million_tokens",
            "joules_per_token": "joules_per_token",
        }
        rows = [tuple(one.get(name) for name in names) for one in self.data["fabrics"]]
        return Table.of_rows(tuple(names.values()), rows)

    @property
    def best(self) -> str:
        """The fabric with the shortest time per output token."""
        return min(self.detail.fabrics, key=lambda one: float(one.fields["mean_tpot_ms"])).name

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        return str(self.data["verdict"])

    def save(self, folder: str | Path) -> Path:
        """Write compare.json and compare.html to a folder and return it. Raises ConfigError."""
        from fabrictwin.base.textfile import make_folder, write_text
        from fabrictwin.study.servers.fabrics import comparison_page

        path = Path(folder)
        make_folder(path)
        write_text(path / "compare.json", self.json())
        write_text(path / "compare.html", comparison_page(self.detail))
        return path

    def __repr__(self) -> str:
        each = ", ".join(f"{one.name} {one.fields['mean_tpot_ms']:.4g} ms" for one in self.detail.fabrics)
        return f"<ServerComparison {self.detail.name}: TPOT {each}>"

    def __str__(self) -> str:
        from fabrictwin.study.servers.fabrics import comparison_text

        return comparison_text(self.detail)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.verdict)}</p>{self.fabrics._repr_html_()}"


def compare_server(
    spec: Spec,
    names: Sequence[str],
    *,
    book: PriceBook,
    own: Mapping[str, FabricPreset],
    years: float,
    stage: Stage,
) -> ServerComparison:
    """Return a server on each fabric. Raises ConfigError."""
    from fabrictwin.study.servers.fabrics import compare_server as play

    return ServerComparison(play(spec, names, book=book, own=own, years=years, stage=stage))
