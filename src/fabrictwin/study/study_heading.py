"""The first keys of a study's JSON: of what it is."""

from __future__ import annotations

from typing import Any, Protocol


class Studied(Protocol):
    """A study of one job on one cluster."""

    @property
    def name(self) -> str: ...
    @property
    def cluster_line(self) -> str: ...
    @property
    def layout_line(self) -> str: ...
    @property
    def fidelity(self) -> str: ...
    @property
    def seed(self) -> int: ...


def heading(found: Studied) -> dict[str, Any]:
    """Return the schema, the study's name, its cluster and job in a line each, its fidelity and seed."""
    return {
        "schema": 1,
        "name": found.name,
        "cluster": found.cluster_line,
        "job": found.layout_line,
        "fidelity": found.fidelity,
        "seed": found.seed,
    }
