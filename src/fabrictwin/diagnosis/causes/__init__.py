"""Causes: everything that a finding can name, by mechanism, with what makes it right and where that is written.

They stand in `data/`, a file for each kind of thing; `follows` there are causes of which one is a consequence where
both were found, `"*"` any cause that says more.
"""

from __future__ import annotations

from fabrictwin.base.yamlfile import read_bundled
from fabrictwin.diagnosis.finding import Cause, Severity

FILES = ("job", "program", "launch", "fabric", "host", "gpu")


def _read(name: str) -> dict[str, Cause]:
    rows = read_bundled(__name__, f"{name}.yaml")
    return {
        key: Cause(
            id=key,
            severity=Severity[row.pop("severity").upper()],
            follows=tuple(row.pop("follows", ())),
            **row,
        )
        for key, row in rows.items()
    }


CAUSES: dict[str, Cause] = {key: one for name in FILES for key, one in _read(name).items()}


def cause(name: str) -> Cause:
    """The cause of this id."""
    return CAUSES[name]
