"""Measurements of cuts as rows of a table: seeds that gave the same figures share one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fabrictwin.study.compare.packet_measurements import Played


def measured_rows(played: Sequence[Played]) -> list[tuple[Played, tuple[int, ...]]]:
    """Each distinct outcome of a phase, and the seeds that gave it, in the order of the first."""
    found: dict[Played, list[int]] = {}
    for one in played:
        found.setdefault(replace(one, seed=0), []).append(one.seed)
    return [(one, tuple(seeds)) for one, seeds in found.items()]
