"""The grid of ranks: tensor parallel fastest, then data parallel, then pipeline, as Megatron-LM numbers them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """tp × dp × pp ranks."""

    tp: int
    dp: int
    pp: int

    @property
    def ranks(self) -> int:
        return self.tp * self.dp * self.pp

    @cached_property
    def grid(self) -> I64:
        """[pp, dp, tp] rank."""
        return np.arange(self.ranks).reshape(self.pp, self.dp, self.tp)

    def tp_groups(self, replicas: I64, stage: int) -> I64:
        """[replicas, tp] the tensor-parallel groups of a stage."""
        groups: I64 = self.grid[stage, replicas]
        return groups

    def dp_groups(self, positions: I64, stage: int) -> I64:
        """[positions, dp] the data-parallel groups of a stage's tensor-parallel positions."""
        groups: I64 = self.grid[stage][:, positions].T
        return groups


@dataclass(frozen=True)
class Cells:
    """Which ranks act alike: replicas and tensor-parallel positions divided into classes.

    Folded, all replicas are one class and all positions are one; a replica with a rank that differs is a class of
    its own. Unfolded, every replica and every position is.
    """

    replicas: tuple[I64, ...]
    positions: tuple[I64, ...]

    @classmethod
    def of(cls, layout: Layout, slowdown: npt.NDArray[np.float64], *, fold: bool) -> Cells:
        """The classes of a layout; `slowdown` is [ranks], 1 where a rank is as fast as it should be."""
        if not fold:
            return cls(
                tuple(np.array([r]) for r in range(layout.dp)), tuple(np.array([t]) for t in range(layout.tp))
            )
        differs = (slowdown[layout.grid] != 1).any(axis=(0, 2))
        alike = np.flatnonzero(~differs)
        replicas = ([alike] if len(alike) else []) + [np.array([r]) for r in np.flatnonzero(differs)]
        return cls(tuple(replicas), (np.arange(layout.tp),))
