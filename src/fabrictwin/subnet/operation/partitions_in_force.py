"""Partition keys read back from what adapters and switch ports hold, and what they kept out of a run.

Queue pairs use the key at index 0 of their adapter's table.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.partition_keys import KEY, KeyViolations
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.key_violations import BadKey, refuse_at_port, refuse_at_switch
from fabrictwin.subnet.agents.port_states import FULL_PKEY
from fabrictwin.subnet.wire.fields import Field
from fabrictwin.subnet.wire.smp import PKeyTable, PortInfo

_INBOUND = Field(PortInfo, "partition_enforcement_inbound")
_OUTBOUND = Field(PortInfo, "partition_enforcement_outbound")
_POWER_ON = frozenset({FULL_PKEY & KEY})  # what a port lets through that nobody has set


@record(eq=False)
class Partitions:
    """Keys of E adapters, and what the switch ports that face them enforce."""

    keys: I64  # [E] at index 0
    inbound: tuple[frozenset[int] | None, ...]  # [E] keys without the membership bit; None: lets everything in
    outbound: tuple[frozenset[int] | None, ...]

    def is_like(self, other: Partitions | None) -> bool:
        """Return whether another has the same keys in the same places."""
        return (
            other is not None
            and np.array_equal(self.keys, other.keys)
            and (self.inbound, self.outbound) == (other.inbound, other.outbound)
        )

    @property
    def open(self) -> bool:
        """Return whether everybody is a full member of the default partition."""
        return bool((self.keys == FULL_PKEY).all())


_read = cache(lambda block: PKeyTable.decode(block).pkeys)


def partitions_of(state: SubnetState) -> Partitions:
    """Partitions as nodes hold them now."""
    blocks: dict[int, list[bytes]] = {}
    for (slot, _), block in state.pkeys.items():
        blocks.setdefault(slot, []).append(block)
    keys = np.zeros(len(state.fabric.nic_node), np.int64)
    gates: list[tuple[frozenset[int] | None, frozenset[int] | None]] = []
    for adapter, node in enumerate(state.fabric.nic_node):
        m = int(state.managed[node])
        slot = NONE if m == NONE else state.end_slot(m)
        held = None if slot == NONE else state.pkeys.get((slot, 0))
        keys[adapter] = FULL_PKEY if held is None else _read(held)[0]
        facing = NONE if slot == NONE else state.cable[slot]
        if facing == NONE or not state.is_switch[state.node_of[facing]]:
            gates.append((None, None))
            continue
        tables = blocks.get(facing)
        let = (
            _POWER_ON if tables is None else frozenset(key & KEY for t in tables for key in _read(t) if key & KEY)
        )
        inbound, outbound = (let if way.get(state.info, 64 * facing) else None for way in (_INBOUND, _OUTBOUND))
        gates.append((inbound, outbound))
    return Partitions(keys, tuple(gate[0] for gate in gates), tuple(gate[1] for gate in gates))


class ViolationTeller:
    """Tells agents what partition keys kept out of one engine, as often as asked, each packet once."""

    def __init__(self, state: SubnetState) -> None:
        self.state = state
        self._known: dict[int, int] = {}  # packets by queue pair

    def tell(self, found: KeyViolations, partitions: Partitions, began_ps: int) -> bool:
        """Count what was kept out until now under these partitions; says whether there was anything new.

        `began_ps` is the agents' time when the engine's began.
        """
        told = False
        columns = (found.queue_pair, found.source, found.destination, found.level, found.packets, found.first_ps)
        for q, a, b, level, packets, first_ps in sorted(
            zip(*(column.tolist() for column in columns), strict=True), key=lambda row: (row[5], row[0])
        ):
            fresh = packets - self._known.get(q, 0)
            self._known[q] = packets
            if fresh:
                told = True
                self._count(a, b, (q, level), fresh, partitions, began_ps + first_ps)
        return told

    def _count(
        self, a: int, b: int, where: tuple[int, int], packets: int, partitions: Partitions, now_ps: int
    ) -> None:
        """Count packets of one queue pair (its number and service level) at the first port that looks."""
        state, (q, level) = self.state, where
        source, destination = (state.end_slot(int(state.managed[state.fabric.nic_node[end]])) for end in (a, b))
        key = int(partitions.keys[a])
        bad = BadKey(source, destination, key, level, q, q)
        gates = ((partitions.inbound[a], source, False), (partitions.outbound[b], destination, True))
        for let, end, outbound in gates:
            if let is not None and key & KEY not in let:
                refuse_at_switch(state, bad, packets, now_ps, slot=state.cable[end], outbound=outbound)
                return
        refuse_at_port(state, bad, packets, now_ps)
