"""Virtual lanes as ports hold them: SL to VL maps and VL arbitration (InfiniBand Architecture 7.6.6, 7.6.9).

A map belongs to an output port and the input that a packet came by; an adapter has one. Arbitration belongs to an
output port: two tables of (lane, weight in blocks of 64 bytes) and the Limit of High-Priority. Ports hold the same
few tables again and again, so every table is kept once and ports name it by its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fabrictwin.base.arrays import I32, U8
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE

SERVICE_LEVELS = 16

Entries = tuple[tuple[int, int], ...]  # (lane, weight)


@record
class PortArbitration:
    """One port's two tables and how much the high one may send before the low one's turn."""

    high: Entries = ()
    low: Entries = ()
    high_limit: int = 0  # 4,096 bytes each; 0: one packet, 255: no limit


@record
class LaneTables:
    """Tables of P ports, as programmed."""

    sl_to_vl: U8  # [rows, 16]
    sl_to_vl_row: I32  # [P] the row for what leaves by this port; NONE: it has no map, lanes follow the level
    by_input: np.typing.NDArray[np.bool_]  # [P] that row is for the node's first port, those of its others follow
    arbitrations: tuple[PortArbitration, ...]
    arbitration_row: I32  # [P] NONE: lanes take equal turns

    @classmethod
    def of(
        cls,
        ports: int,
        maps: Mapping[int, Sequence[Sequence[int]]],
        arbitrations: Mapping[int, PortArbitration],
    ) -> LaneTables:
        """`maps[port]` is one map of 16 lanes, or one for each port of the node that packets may come in by."""
        row, by_input = np.full(ports, NONE, np.int32), np.zeros(ports, np.bool_)
        rows: list[tuple[int, ...]] = []
        known: dict[tuple[tuple[int, ...], ...], int] = {}
        for port, given in maps.items():
            table = tuple(tuple(int(vl) for vl in one) for one in given)
            if len(set(table)) == 1:
                table = table[:1]
            if table not in known:
                known[table] = len(rows)
                rows += table
            row[port], by_input[port] = known[table], len(table) > 1
        turn = np.full(ports, NONE, np.int32)
        kept = tuple(dict.fromkeys(arbitrations.values()))
        place = {one: i for i, one in enumerate(kept)}
        for port, one in arbitrations.items():
            turn[port] = place[one]
        return cls(np.array(rows, np.uint8).reshape(-1, SERVICE_LEVELS), row, by_input, kept, turn)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LaneTables)
            and self.arbitrations == other.arbitrations
            and np.array_equal(self.sl_to_vl, other.sl_to_vl)
            and np.array_equal(self.sl_to_vl_row, other.sl_to_vl_row)
            and np.array_equal(self.by_input, other.by_input)
            and np.array_equal(self.arbitration_row, other.arbitration_row)
        )

    __hash__ = None  # type: ignore[assignment]

    def lanes_of(self, levels: Sequence[int]) -> set[int]:
        """Every lane that packets of these service levels travel on somewhere."""
        return {int(vl) for vl in np.unique(self.sl_to_vl[:, list(levels)])}
