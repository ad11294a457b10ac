"""Paths that are others than before, and the time for which they led nowhere: old and new tables, walked.

A path is followed from the switch that its source hangs on to a LID; all adapters on a switch share it. It is
*broken* if one of its links stopped passing data. It is whole again when the last entry of its new way was set and
the last link of that way passes data again; from the first loss to then is its outage.

Left out: paths of the datagrams themselves (directed routes), multicast trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fabrictwin.base.arrays import I64, U8
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.graph.switches import Switches, switch_graph
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.port_states import LMC, NO_PORT

_CHUNK = 512  # LIDs looked at together, for the size of temporary arrays
_LONGEST = 64
_NEVER = np.iinfo(np.int64).max


@record
class ChangedPath:
    """A path that is another than before, or that was broken for a while. Times are the managers'."""

    switch: str  # that its sources hang on
    sources: tuple[str, ...]  # the adapters there, but for the destination itself
    destination: str
    adapter: bool  # whether the destination is one
    lid: int
    before: tuple[str, ...]  # the ports that it left switches by
    after: tuple[str, ...]
    broken_ps: int  # when a link of the old way was lost; NONE where none was
    whole_ps: int  # when the new way was complete; NONE where it is not

    @property
    def outage_ps(self) -> int:
        """Time for which it was broken; NONE where it was not, or still is."""
        if NONE in (self.broken_ps, self.whole_ps):
            return NONE
        return max(0, self.whole_ps - self.broken_ps)

    @property
    def pairs(self) -> int:
        """Pairs of an adapter and another's LID that take it."""
        return len(self.sources) if self.adapter else 0


@dataclass
class Changes:
    """Changes of entries and links since some moment."""

    before: dict[tuple[int, int], int]  # (managed node, LID): the port as it was then
    set_ps: dict[tuple[int, int], int]  # when it was last set
    lost_ps: dict[int, int]  # when a slot's link first stopped passing data
    back_ps: dict[int, int]  # when it passed data again, where it does

    @staticmethod
    def none() -> Changes:
        return Changes({}, {}, {}, {})

    def entry(self, key: tuple[int, int], before: int, now_ps: int) -> None:
        """An entry by (managed node, LID) is another now."""
        self.before.setdefault(key, before)
        self.set_ps[key] = now_ps

    def link(self, slot: int, up: bool, now_ps: int) -> None:
        """A slot's link passes data from now on, or no longer."""
        if up:
            self.back_ps[slot] = now_ps
        else:
            self.lost_ps.setdefault(slot, now_ps)
            self.back_ps.pop(slot, None)


class PathFollower:
    """Follows paths by the tables of a fabric's switches."""

    def __init__(self, state: SubnetState) -> None:
        self.state = state
        switches: Switches = switch_graph(state.fabric)
        self.switches = switches
        self._next = np.full((switches.rows, 256), NONE, np.int64)  # the switch behind each port
        self._next[switches.adjacent_from, switches.adjacent_number] = switches.adjacent_row
        self._managed = [int(state.managed[node]) for node in switches.row_node]
        self._row = {m: row for row, m in enumerate(self._managed)}
        self._sources: dict[int, list[str]] = {int(row): [] for row in switches.edge_row}
        for node, row, adapter in zip(
            switches.endpoint_node.tolist(),
            switches.endpoint_row.tolist(),
            switches.endpoint_adapter.tolist(),
            strict=True,
        ):
            if row != NONE and adapter:
                self._sources[row].append(state.fabric.node_name(node))

    def changed(self, changes: Changes, plane: int) -> list[ChangedPath]:
        """Paths of a subnet that are others now, or were broken meanwhile; by switch and LID."""
        state, rows = self.state, self.switches.rows
        if not rows:
            return []
        place = [state.row[m] for m in self._managed]
        new = state.lft[place]
        old = new.copy()
        concerned: set[int] = set()
        for (m, lid), port in changes.before.items():
            old[self._row[m], lid] = port
            concerned.add(lid)
        lost = np.full(rows * 256, NONE, np.int64)  # by row and port
        back = np.full(rows * 256, NONE, np.int64)
        for slot in changes.lost_ps.keys() | changes.back_ps.keys():
            m = state.node_of[slot]
            if m not in self._row:
                continue
            row, number = self._row[m], state.number[slot]
            back[row * 256 + number] = changes.back_ps.get(slot, _NEVER)
            if slot in changes.lost_ps:
                lost[row * 256 + number] = changes.lost_ps[slot]
                concerned.update(np.flatnonzero(old[row] == number).tolist())
        owners = self._owners(plane)
        lids = np.array(sorted(concerned & owners.keys()), np.int64)
        set_ps = np.full((rows, len(lids)), NONE, np.int64)
        column = {lid: i for i, lid in enumerate(lids.tolist())}
        for (m, lid), when in changes.set_ps.items():
            if lid in column:
                set_ps[self._row[m], column[lid]] = when
        sources = np.array(
            [r for r in self.switches.edge_row.tolist() if self._sources[r] and self._plane(r) == plane], np.int64
        )
        found: list[ChangedPath] = []
        for first in range(0, len(lids), _CHUNK):
            part = slice(first, first + _CHUNK)
            found += self._compare(sources, lids[part], (old, new), (lost, back, set_ps[:, part]), owners)
        return sorted(found, key=lambda path: (path.switch, path.lid))

    def _plane(self, row: int) -> int:
        return self.state.plane_of(self._managed[row])

    def _owners(self, plane: int) -> dict[int, int]:
        """The managed node of each LID of a subnet."""
        state = self.state
        owner: dict[int, int] = {}
        for m in range(len(state.guid)):
            slot = state.end_slot(m)
            if state.plane_of(m) == plane and state.lid(slot):
                for k in range(1 << LMC.get(state.info, 64 * slot)):
                    owner[state.lid(slot) + k] = m
        return owner

    def _compare(
        self,
        sources: I64,
        lids: I64,
        tables: tuple[U8, U8],
        times: tuple[I64, I64, I64],
        owners: Mapping[int, int],
    ) -> Iterator[ChangedPath]:
        old, new = (self._walk(sources, lids, table) for table in tables)
        lost, back, set_ps = times
        hops = max(len(old), len(new))
        shape = (len(sources), len(lids))
        differs = np.zeros(shape, bool)
        broken = np.full(shape, _NEVER, np.int64)
        whole = np.zeros(shape, np.int64)
        column = np.arange(len(lids))[None, :]
        for hop in range(hops):
            a = old[hop] if hop < len(old) else np.full(shape, NONE)
            b = new[hop] if hop < len(new) else np.full(shape, NONE)
            differs |= a != b
            gone = lost[np.maximum(a, 0)]
            broken = np.where((a != NONE) & (gone != NONE), np.minimum(broken, gone), broken)
            at = np.maximum(b, 0)
            here = np.maximum(set_ps[at // 256, column], back[at])
            whole = np.where(b != NONE, np.maximum(whole, here), whole)
        differs |= broken < _NEVER
        for i, j in np.argwhere(differs).tolist():
            row, lid = int(sources[i]), int(lids[j])
            m = owners[lid]
            mine = self.state.fabric.node_name(int(self.state.fabric_node[m]))
            others = tuple(name for name in self._sources[row] if name != mine)
            if not others or self._row.get(m) == row:
                continue
            after = self._ports(new, i, j)
            arrives = whole[i, j] < _NEVER and self._ends_at(new, i, j, m)
            yield ChangedPath(
                switch=str(self.switches.row_name[row]),
                sources=others,
                destination=mine,
                adapter=not self.state.is_switch[m],
                lid=lid,
                before=self._ports(old, i, j),
                after=after,
                broken_ps=NONE if broken[i, j] == _NEVER else int(broken[i, j]),
                whole_ps=int(whole[i, j]) if arrives else NONE,
            )

    def _walk(self, sources: I64, lids: I64, table: U8) -> list[I64]:
        """[hops][sources, LIDs] the port that a path leaves a switch by: row * 256 + number, NONE at its end."""
        at = np.repeat(sources[:, None], len(lids), axis=1)
        walking = np.ones(at.shape, bool)
        taken: list[I64] = []
        for _ in range(_LONGEST):
            out = table[at, lids[None, :]].astype(np.int64)
            walking &= (out != 0) & (out != NO_PORT)
            if not walking.any():
                break
            taken.append(np.where(walking, at * 256 + out, NONE))
            on = self._next[at, out]
            walking = walking & (on != NONE)
            at = np.where(walking, on, at)
        return taken

    def _ports(self, walked: list[I64], i: int, j: int) -> tuple[str, ...]:
        return tuple(
            f"{self.switches.row_name[int(hop[i, j]) // 256]}/{int(hop[i, j]) % 256}"
            for hop in walked
            if hop[i, j] != NONE
        )

    def _ends_at(self, walked: list[I64], i: int, j: int, m: int) -> bool:
        """Return whether a path ends at a managed node, cables as built."""
        codes = [int(hop[i, j]) for hop in walked if hop[i, j] != NONE]
        if not codes:
            return False
        row, number = divmod(codes[-1], 256)
        far = self.state.cable[self.state.base[self._managed[row]] + number]
        return far != NONE and self.state.node_of[far] == m


def path_text(path: ChangedPath) -> str:
    """A changed path, for people."""
    before, after = (" > ".join(way) or "nowhere" for way in (path.before, path.after))
    if path.whole_ps == NONE and path.after:
        after = "nowhere"  # its entries are still there
    elif before == after:
        after = "the same"
    many = f" ({len(path.sources)} adapters)" if len(path.sources) > 1 else ""
    return f"{path.switch}{many} to {path.destination}: {before} -> {after}"
