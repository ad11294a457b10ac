"""Columns of an answer, as a terminal and a notebook show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

ROWS_SHOWN = 20


class Table:
    """Columns of one length by name, in order; units are in the names. Rows are dictionaries.

    `len(table)`, `table["step_s"]` (a column), `table[0]` (a row) and iteration over rows work as expected.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: list(values) for name, values in columns.items()}
        if len({len(values) for values in self._columns.values()}) > 1:
            raise ValueError("expected columns of one length")

    @classmethod
    def of_rows(cls, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
        """Return a table of rows whose cells are in the order of `names`."""
        return cls({name: [row[i] for row in rows] for i, name in enumerate(names)})

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return columns by name, as `pandas.DataFrame` and `polars.DataFrame` take them."""
        return {name: list(values) for name, values in self._columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, str):
            return list(self._columns[key])
        rows = range(len(self))
        return {name: values[rows[key]] for name, values in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        rows = range(min(len(self), ROWS_SHOWN))
        cells = [[_cell(values[i]) for i in rows] for values in self._columns.values()]
        numeric = [_is_numeric(values) for values in self._columns.values()]
        lines = []
        columns = list(zip(self._columns, cells, numeric, strict=True))
        widths = [max(len(name), *map(len, column)) if column else len(name) for name, column, _ in columns]
        for i in range(-1, len(rows)):
            parts = (
                (name if i < 0 else column[i]).rjust(width)
                if right
                else (name if i < 0 else column[i]).ljust(width)
                for (name, column, right), width in zip(columns, widths, strict=True)
            )
            lines.append("  ".join(parts).rstrip())
        if len(rows) < len(self):
            lines.append(f"... {len(self) - len(rows):,} more rows")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self._columns)
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{"right" if _is_number(value) else "left"}">{escape(_cell(value))}</td>'
                for value in self[i].values()
            )
            + "</tr>"
            for i in range(min(len(self), ROWS_SHOWN))
        )
        more = f"<p>{len(self) - ROWS_SHOWN:,} more rows</p>" if len(self) > ROWS_SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_numeric(values: Sequence[Any]) -> bool:
    return any(map(_is_number, values)) and all(value is None or _is_number(value) for value in values)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
