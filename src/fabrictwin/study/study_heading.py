"""What a study is of, as its JSON and its texts begin."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.records import record


@record
class Heading:
    """One job on one cluster: the study's name, cluster and job in a line each, fidelity and seed."""

    name: str
    cluster_line: str
    layout_line: str
    fidelity: str
    seed: int

    def data(self) -> dict[str, Any]:
        """Return the first keys of the study's JSON."""
        return {
            "schema": 1,
            "name": self.name,
            "cluster": self.cluster_line,
            "job": self.layout_line,
            "fidelity": self.fidelity,
            "seed": self.seed,
        }

    def lines(self) -> list[str]:
        """Return the first lines of the study's text."""
        return [self.name, f"  cluster      {self.cluster_line}", f"  job          {self.layout_line}"]
