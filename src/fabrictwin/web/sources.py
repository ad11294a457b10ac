"""Specs of requests: text or data with edits, beside files that were dropped in, and nothing else of the machine.

A spec names files: a model, a cluster, a topology. Here such a name is looked up in one folder alone, made for the
request: what is in the examples or in the folder that is served, and what was dropped in. A name that leads out
of it (`..`, an absolute path, a link) is refused before anything is opened.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.nested import laid_over
from fabrictwin.base.records import record
from fabrictwin.base.yamlfile import Lines, dotted, read_yaml, read_yaml_file
from fabrictwin.cluster.spec.edits import set_key
from fabrictwin.cluster.spec.spec import Origin, Spec, load_spec, read_spec, without_figures

FILE = "spec"  # what errors call the text of a request
MOST_BESIDE = 2_000  # entries of a folder that are offered to specs


@record
class Source:
    """What a request asks about."""

    text: str = ""  # of a spec, as YAML
    data: Mapping[str, Any] | None = None  # the same as plain data, in place of text
    edits: Mapping[str, Any] = field(default_factory=dict)  # values by key, over it
    base: str = ""  # the folder beside which the spec lies; empty for none
    files: Mapping[str, str] = field(default_factory=dict)  # paths of dropped files, by name


@record
class Read:
    """A spec's plain data as it is asked for, and where its keys stand in the text."""

    data: Any
    origin: Origin
    edited: bool


@contextmanager
def folder_of(source: Source) -> Iterator[Path]:
    """A folder that holds links to what a spec may name, as long as it is asked about."""
    with tempfile.TemporaryDirectory(prefix="fabrictwin-spec-") as name:
        folder = Path(name)
        if source.base:
            for count, entry in enumerate(sorted(Path(source.base).iterdir())):
                if count < MOST_BESIDE and not entry.name.startswith("."):
                    (folder / entry.name).symlink_to(entry.resolve())
        for name, path in source.files.items():
            link = folder / name
            link.unlink(missing_ok=True)
            link.symlink_to(path)
        yield folder


def read_source(source: Source, folder: Path) -> Read:
    """Read a source's text, with its edits. Raises ConfigError."""
    lines: Lines = {}
    if source.data is None:
        data, lines = read_yaml(source.text, FILE)
    else:
        data = laid_over({}, dict(source.data))
    if not isinstance(data, dict):
        raise ConfigError("expected the keys of a spec: schema, name, cluster, workload", file=FILE, line=1)
    for key, value in source.edits.items():
        _edit(data, key, value)
    if any(key.partition(".")[0] not in ("run", "name") for key in source.edits):
        without_figures(data)
    confine(data, source, folder)
    origin = Origin(folder, None)
    origin.add((), FILE, lines)
    return Read(data, origin, bool(source.edits))


def _edit(data: Any, key: str, value: Any) -> None:
    """Lay a value over what stands at a key, modified in place; what is null, in a mapping too, is removed."""
    if value is None:
        _remove(data, key)
        return
    if isinstance(value, Mapping):
        for name in [name for name, one in value.items() if one is None]:
            _remove(data, f"{key}.{name}")
        value = {name: one for name, one in value.items() if one is not None}
    set_key(data, key, value)


def _remove(data: Any, key: str) -> None:
    """Take a key out of plain data, modified in place; one that is not there stays so."""
    *path, last = key.split(".")
    for part in path:
        if isinstance(data, list) and len(data) == 1:
            data = data[0]
        if not isinstance(data, dict) or part not in data:
            return
        data = data[part]
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    if isinstance(data, dict):
        data.pop(last, None)


def spec_of(source: Source, folder: Path) -> Spec:
    """The spec of a source. Raises ConfigError."""
    read = read_source(source, folder)
    spec = read_spec(read.data, read.origin)
    confine(spec.to_dict(), source, folder)  # a cluster in a file of its own names files as well
    for name in _neighbours(spec.workload):
        confine(read_yaml_file(folder / name)[0], source, folder)
        confine(load_spec(folder / name).to_dict(), source, folder)
    return spec


def _neighbours(workload: Mapping[str, Any]) -> list[str]:
    """Return the specs that a server's names, whose own names of files have to stay here too."""
    serving = workload.get("serving")
    named = serving.get("neighbours") if isinstance(serving, Mapping) else None
    return [name for name in named if isinstance(name, str)] if isinstance(named, list | tuple) else []


def confine(data: Any, source: Source, folder: Path) -> None:
    """Raise ConfigError for a text in plain data that is the name of a file outside of the request's folder."""
    allowed = [folder.resolve(), *(Path(path).resolve() for path in source.files.values())]
    if source.base:
        allowed.append(Path(source.base).resolve())
    for path, text in _texts(data, ()):
        if not text or "\n" in text or len(text) > 4096:
            continue
        parts = Path(text).parts
        leaves = text.startswith(("/", "~")) or ".." in parts or "\0" in text
        if not leaves and len(parts) <= 64 and all(len(part) < 256 for part in parts):
            found = (folder / text).resolve()
            leaves = not any(found == one or one in found.parents for one in allowed)
        if leaves:
            raise ConfigError(
                f"got {quoted(text)}, expected the name of a file beside the spec: a page opens no other",
                key=dotted(path),
            )


def _texts(data: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _texts(value, (*path, str(key)))
    elif isinstance(data, list | tuple):
        for place, value in enumerate(data):
            yield from _texts(value, (*path, place))
