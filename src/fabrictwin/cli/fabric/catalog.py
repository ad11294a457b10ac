"""`fabrictwin catalog`: what hardware the twin knows, and where each figure comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fabrictwin.cli.completion import catalog_kind, catalog_name
from fabrictwin.cli.options import JSON, Group

if TYPE_CHECKING:
    from pydantic import BaseModel

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
        _print_table([("figure", "value", "", "source"), *_plain(entry), *_rows(entry)])
        notes = _notes(entry)
        if notes:
            click.echo("\nnotes")
            for keys, note in notes:
                click.echo(f"  {keys}: {note}")


def _plain(value: BaseModel, path: str = "") -> list[tuple[str, str, str, str]]:
    """Rows of what an entry says in words: other entries that it is made of, how ports are run."""
    from pydantic import BaseModel

    from fabrictwin.catalog.figures import Figure
    from fabrictwin.catalog.gpus import GemmTable
    from fabrictwin.catalog.hosts import HostPart

    rows: list[tuple[str, str, str, str]] = []
    for field in type(value).model_fields:
        item = getattr(value, field)
        at = f"{path}{field}"
        if field in ("name", "title", "source", "note") or isinstance(item, Figure):
            continue
        if isinstance(item, dict):
            rows += [(f"{at}.{key}", name, "", "") for key, name in item.items() if isinstance(name, str)]
        elif isinstance(item, BaseModel):
            rows += _plain(item, f"{at}.")
        elif isinstance(item, str | int) and item != "":
            rows.append((at, str(item), "", ""))
        elif isinstance(item, tuple):
            for i, part in enumerate(item):
                if isinstance(part, BaseModel) and not isinstance(part, GemmTable | HostPart):
                    rows += _plain(part, f"{at}[{i}].")
    return rows


def _rows(entry: Entry) -> list[tuple[str, str, str, str]]:
    """Key, value, whether an estimate, source title; what is computed comes last."""
    from fabrictwin import catalog
    from fabrictwin.catalog.gpus import GemmTable
    from fabrictwin.catalog.hosts import HostLinks, HostNic

    rows = []
    for key, item in catalog.figures(entry):
        title = catalog.sources()[item.source].title
        mark = "estimate" if item.estimate else ""
        if isinstance(item, GemmTable) and not item.like:
            rows.append((key, f"{len(item.points)} measured products", mark, title))
            rows += [(f"  {shape}", f"{flops / 1e12:g} TFLOP/s", "", "") for shape, flops in item.points.items()]
        elif isinstance(item, GemmTable):
            rows.append((key, f"{item.like} × {float(item.factor):g}", mark, title))
        elif isinstance(item, HostLinks):
            times = f"{item.count} × " if item.count > 1 else ""
            rows.append((key, f"{_run(item.a)} to {_run(item.b)}: {times}{item.link}", mark, title))
        elif isinstance(item, HostNic):
            rows.append((key, f"{item.hca}, {item.type}, rail {item.rail}", mark, title))
        elif isinstance(item, catalog.Figure):
            rows.append((key, item.text, mark, title))
    return rows + [(label, value, "", "computed") for label, value in entry.computed().items()]


def _notes(entry: Entry) -> list[tuple[str, str]]:
    """Each note once, with the keys that it is about."""
    from fabrictwin import catalog

    about: dict[str, list[str]] = {}
    for key, item in catalog.figures(entry):
        if item.note:
            about.setdefault(item.note, []).append(key)
    return [(", ".join(keys), note) for note, keys in about.items()]


def _run(nodes: tuple[str, ...]) -> str:
    """Consecutive node names, shortened: `gpu0..gpu7`."""
    stem = nodes[0].rstrip("0123456789")
    first = int(nodes[0][len(stem) :])
    if len(nodes) > 2 and nodes == tuple(f"{stem}{first + i}" for i in range(len(nodes))):
        return f"{nodes[0]}..{nodes[-1]}"
    return ", ".join(nodes)


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
