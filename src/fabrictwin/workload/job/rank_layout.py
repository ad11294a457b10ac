"""The grid of ranks: tensor parallel fastest, then context, then data, then pipeline, as Megatron-LM numbers them.

With its use-tp-pp-dp-mapping, pipeline comes before data: a replica's stages lie together.

Data-parallel ranks that exchange something in every pass (experts, sharded parameters) are bound into a *unit*.
A unit's ranks of one stage are its *positions*; what crosses units happens once a step. Expert-parallel groups
are laid over positions: expert-tensor ranks fastest, then expert ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record

Order = Literal["tp-cp-dp-pp", "tp-cp-pp-dp"]


@record
class Layout:
    """tp × cp × dp × pp ranks."""

    tp: int
    dp: int
    pp: int
    cp: int = 1
    ep: int = 1
    expert_tp: int = 1
    width: int = 1  # data-parallel ranks in a unit
    order: Order = "tp-cp-dp-pp"

    @property
    def ranks(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def units(self) -> int:
        return self.dp // self.width

    @property
    def positions(self) -> int:
        return self.width * self.cp * self.tp

    @property
    def batch_ranks(self) -> int:
        """Ranks that hold the same dense parameters of a stage: data times context."""
        return self.dp * self.cp

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold the same experts of a stage."""
        return self.dp * self.cp * self.tp // (self.ep * self.expert_tp)

    @cached_property
    def grid(self) -> I64:
        """[pp, units, positions] rank."""
        ranks = np.arange(self.ranks)
        if self.order == "tp-cp-pp-dp":
            stages = ranks.reshape(self.units, self.width, self.pp, self.cp * self.tp).transpose(2, 0, 1, 3)
            return np.ascontiguousarray(stages.reshape(self.pp, self.units, self.positions))
        return ranks.reshape(self.pp, self.units, self.positions)

    def inside(self, kind: str) -> I64:
        """[groups, n] positions of a unit that talk to each other in a pass.

        `kind` is tp, cp, ep or expert_tp; or, for what crosses units as well: shard (same dense parameters),
        expert_shard (same experts), copies (same place).
        """
        every = np.arange(self.positions)
        if kind == "tp":
            groups = every.reshape(-1, self.tp)
        elif kind == "cp":
            groups = every.reshape(-1, self.cp, self.tp).transpose(0, 2, 1).reshape(-1, self.cp)
        elif kind == "ep":
            groups = every.reshape(-1, self.ep, self.expert_tp).transpose(0, 2, 1).reshape(-1, self.ep)
        elif kind == "expert_tp":
            groups = every.reshape(-1, self.expert_tp)
        elif kind == "shard":
            groups = every.reshape(-1, self.tp).T
        elif kind == "expert_shard":
            groups = every.reshape(-1, self.ep * self.expert_tp).T
        else:
            groups = every[:, None]
        return np.ascontiguousarray(groups)


@record
class Cells:
    """Which ranks act alike: units and positions divided into classes.

    Folded, all units are one class and all positions are one; a unit with a rank that differs is a class of its
    own. Unfolded, every unit and every position is.
    """

    units: tuple[I64, ...]
    positions: tuple[I64, ...]

    @classmethod
    def of(cls, layout: Layout, differs: npt.NDArray[np.bool_], *, fold: bool) -> Cells:
        """The classes of a layout; `differs` is [ranks], true where a rank is not as it should be."""
        if not fold:
            return cls(
                tuple(np.array([u]) for u in range(layout.units)),
                tuple(np.array([p]) for p in range(layout.positions)),
            )
        apart = differs[layout.grid].any(axis=(0, 2))
        alike = np.flatnonzero(~apart)
        units = ([alike] if len(alike) else []) + [np.array([u]) for u in np.flatnonzero(apart)]
        return cls(tuple(units), (np.arange(layout.positions),))

    def gathered(self, groups: I64) -> list[tuple[I64, list[int]]]:
        """Groups of positions, put together where they touch the same classes: (groups, classes) of each."""
        if len(self.positions) == 1:
            return [(groups, [0])]
        of_position = np.empty(sum(len(p) for p in self.positions), np.int64)
        for number, positions in enumerate(self.positions):
            of_position[positions] = number
        found: dict[tuple[int, ...], list[int]] = {}
        for i, classes in enumerate(of_position[groups]):
            found.setdefault(tuple(sorted(set(classes.tolist()))), []).append(i)
        return [(groups[rows], list(classes)) for classes, rows in found.items()]


def split_layers(
    layers: int, stages: int, *, ends_as_layers: bool, given: Sequence[int] | None
) -> list[int] | None:
    """Number of layers that each of `stages` (virtual) stages holds, in order; None where they do not divide.

    `ends_as_layers` counts the embedding and the output projection as a layer each, as Megatron-LM's switches
    account-for-embedding and account-for-loss-in-pipeline-split do.
    """
    if given is not None:
        return list(given) if len(given) == stages and sum(given) == layers else None
    slots = layers + 2 * ends_as_layers
    if slots % stages:
        return None
    counts = [slots // stages] * stages
    if ends_as_layers:
        counts[0] -= 1
        counts[-1] -= 1
    return counts if min(counts) >= 0 else None
