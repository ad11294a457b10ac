"""Specs from wherever people have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fabrictwin.cluster.spec.spec import Origin, Spec, load_spec, read_spec

Source = Spec | str | Path | Mapping[str, Any]


def load(source: Source, *, folder: str | Path = ".") -> Spec:
    """Return the spec of a file, of plain data, or the spec itself.

    Relative paths in plain data count from `folder`. Raises ConfigError: file, line, key, what was got and
    expected.
    """
    if isinstance(source, Spec):
        return source
    if isinstance(source, Mapping):
        return read_spec(dict(source), Origin(Path(folder), None))
    return load_spec(source)
