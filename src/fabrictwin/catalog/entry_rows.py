"""An entry of the catalog as rows for people: what it says in words, every figure with its source, notes."""

from __future__ import annotations

from pydantic import BaseModel

from fabrictwin.base.records import record
from fabrictwin.catalog.answers import sources
from fabrictwin.catalog.entry_kinds import figures
from fabrictwin.catalog.figures import Entry, Figure, SourcedPart
from fabrictwin.catalog.gpus import GemmTable
from fabrictwin.catalog.hosts import HostLinks, HostNic


@record
class EntryRow:
    """A figure or a word of an entry. `source` is a title, `url` where it is published."""

    key: str
    value: str
    estimate: bool = False
    source: str = ""
    url: str = ""


def entry_rows(entry: Entry) -> list[EntryRow]:
    """All rows of an entry: what it is made of, its figures, what is computed from them."""
    return [*_words(entry), *_figures(entry)]


def entry_notes(entry: Entry) -> list[tuple[str, str]]:
    """Each note once, with the keys that it is about."""
    about: dict[str, list[str]] = {}
    for key, item in figures(entry):
        if item.note:
            about.setdefault(item.note, []).append(key)
    return [(", ".join(keys), note) for note, keys in about.items()]


def _words(value: BaseModel, path: str = "") -> list[EntryRow]:
    """Rows of what an entry says in words: other entries that it is made of, how ports are run."""
    rows: list[EntryRow] = []
    for field in type(value).model_fields:
        item = getattr(value, field)
        at = f"{path}{field}"
        if field in ("name", "title", "source", "note") or isinstance(item, Figure):
            continue
        if isinstance(item, dict):
            rows += [EntryRow(f"{at}.{key}", name) for key, name in item.items() if isinstance(name, str)]
        elif isinstance(item, BaseModel):
            rows += _words(item, f"{at}.")
        elif isinstance(item, str | int) and item != "":
            rows.append(EntryRow(at, str(item)))
        elif isinstance(item, tuple):
            for i, part in enumerate(item):
                if isinstance(part, BaseModel) and not isinstance(part, SourcedPart):
                    rows += _words(part, f"{at}[{i}].")
    return rows


def _figures(entry: Entry) -> list[EntryRow]:
    known = sources()
    rows = []
    for key, item in figures(entry):
        source = known[item.source]
        where = (item.estimate, source.title, source.url)
        if isinstance(item, GemmTable) and not item.like:
            rows.append(EntryRow(key, f"{len(item.points)} measured products", *where))
            rows += [EntryRow(f"  {shape}", f"{flops / 1e12:g} TFLOP/s") for shape, flops in item.points.items()]
        elif isinstance(item, GemmTable):
            rows.append(EntryRow(key, f"{item.like} × {float(item.factor):g}", *where))
        elif isinstance(item, HostLinks):
            times = f"{item.count} × " if item.count > 1 else ""
            rows.append(EntryRow(key, f"{_run(item.a)} to {_run(item.b)}: {times}{item.link}", *where))
        elif isinstance(item, HostNic):
            rows.append(EntryRow(key, f"{item.hca}, {item.type}, rail {item.rail}", *where))
        elif isinstance(item, Figure):
            rows.append(EntryRow(key, item.text, *where))
    return rows + [EntryRow(label, value, source="computed") for label, value in entry.computed().items()]


def _run(nodes: tuple[str, ...]) -> str:
    """Consecutive node names, shortened: `gpu0..gpu7`."""
    stem = nodes[0].rstrip("0123456789")
    first = int(nodes[0][len(stem) :])
    if len(nodes) > 2 and nodes == tuple(f"{stem}{first + i}" for i in range(len(nodes))):
        return f"{nodes[0]}..{nodes[-1]}"
    return ", ".join(nodes)
