"""`fabrictwin catalog`: what hardware the twin knows, and where each figure comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fabrictwin.cli.completion import catalog_kind, catalog_name
from fabrictwin.cli.options import JSON, Group

if TYPE_CHECKING:
    from fabrictwin.catalog import Entry


@click.group(cls=Group, no_args_is_help=True)
def catalog() -> None:
    """Hardware figures and their sources."""


@catalog.command("list")
@click.argument(
    "kind",
    required=False,
    default="",
    metavar="KIND",
    shell_complete=catalog_kind,
    help="Only this kind: gpu, host, nic, switch, cable, ...",
)
@JSON
def list_entries(kind: str, as_json: bool) -> None:
    """List the entries of the catalog."""
    from fabrictwin import catalog

    if kind:
        catalog.names(kind)
    rows = [(k, name, entry.title) for k, name, entry in catalog.entries() if kind in ("", k)]
    if as_json:
        _print_json([{"kind": k, "name": name, "title": title} for k, name, title in rows])
    else:
        _print_table([("kind", "name", "what"), *rows])


@catalog.command()
@click.argument("name", metavar="NAME", shell_complete=catalog_name, help="A name that `list` prints.")
@JSON
def show(name: str, as_json: bool) -> None:
    """Show an entry: every figure with its source, estimates marked."""
    from fabrictwin import catalog
    from fabrictwin.catalog.entry_rows import entry_notes, entry_rows

    found = catalog.find(name)
    if as_json:
        _print_json([_as_json(kind, entry) for kind, entry in found])
        return
    for number, (kind, entry) in enumerate(found):
        if number:
            click.echo()
        click.echo(f"{entry.name}  {kind}  {entry.title}")
        if entry.note:
            click.echo(f"  {entry.note}")
        click.echo()
        rows = [(row.key, row.value, "estimate" if row.estimate else "", row.source) for row in entry_rows(entry)]
        _print_table([("figure", "value", "", "source"), *rows])
        notes = entry_notes(entry)
        if notes:
            click.echo("\nnotes")
            for keys, note in notes:
                click.echo(f"  {keys}: {note}")


@catalog.command()
@JSON
def generations(as_json: bool) -> None:
    """List InfiniBand's generations: year, line code, rates, published latencies of adapters."""
    from fabrictwin.catalog.generations import generations_data, generations_rows

    if as_json:
        _print_json(generations_data())
    else:
        _print_table(generations_rows())


@catalog.command()
@JSON
def power(as_json: bool) -> None:
    """List power of servers and racks by GPU generation, and tokens a joule where they were measured."""
    from fabrictwin import catalog
    from fabrictwin.catalog.generations import power_data, power_rows

    found = [catalog.server_power(name) for name in catalog.names("server_power")]
    if as_json:
        _print_json(power_data(found))
    else:
        _print_table(power_rows(found))


def _as_json(kind: str, entry: Entry) -> dict[str, Any]:
    from fabrictwin import catalog

    used = {item.source for _, item in catalog.figures(entry)}
    return {
        "kind": kind,
        **entry.model_dump(mode="json"),
        "computed": entry.computed(),
        "sources": {key: source.model_dump() for key, source in catalog.sources().items() if key in used},
    }


def _print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
