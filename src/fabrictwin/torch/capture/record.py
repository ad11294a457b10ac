"""What processes of a capture leave in their folder: ranks that they exchange messages with, and their record."""

from __future__ import annotations

import json
from pathlib import Path

from fabrictwin.interchange.rank_traces import RankTrace
from fabrictwin.torch.rank_record import write_record

OUT = "FABRICTWIN_TORCH_OUT"  # the folder
STEP = "FABRICTWIN_TORCH_STEP"  # of the optimizer, the only one that is recorded


def meet(folder: Path, rank: int, peer: int) -> None:
    """Write down that a rank exchanges messages with another."""
    (folder / f"met.{rank}.{peer}").touch()


def met(folder: Path) -> dict[int, set[int]]:
    """Ranks that each rank exchanges messages with, so far."""
    found: dict[int, set[int]] = {}
    for path in folder.glob("met.*"):
        rank, peer = map(int, path.name.split(".")[1:])
        found.setdefault(rank, set()).add(peer)
    return found


def leave(folder: Path, trace: RankTrace, **figures: int) -> None:
    """Write a rank's record and its figures."""
    (folder / f"figures.{trace.rank}").write_text(json.dumps(figures))
    write_record(trace, folder / f"rank.{trace.rank}.json")


def figures(folder: Path) -> dict[int, dict[str, int]]:
    """Figures of every rank that left them: bytes of memory, values asked for, KiB of this machine's memory."""
    return {int(path.suffix[1:]): json.loads(path.read_text()) for path in folder.glob("figures.*")}
