"""Programs and transfers on the packet engine, and everything that a run says of itself."""

from __future__ import annotations

from functools import cache
from typing import Any

from support.clusters import blueprint
from support.programs import operations

from fabrictwin.base.grouped import grouped
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.program.program import Communication
from fabrictwin.twin import Twin

US = 1_000_000
_SWITCH = {"infiniband": "qm8700", "ethernet": "spectrum-4"}


@cache
def two_hosts(technology: str) -> Twin:
    """Two DGX A100. Shared: do not change it."""
    return Twin(blueprint(2, technology=technology, switch=_SWITCH[technology]))


def begins_after(communication: Communication, base_ps: int = 2 * US) -> Communication:
    """A kernel's start, as a step's communications have it."""
    return grouped(communication, {"base_ps": base_ps})


def played(twin: Twin, program: Any, communications: list[Communication], **options: Any) -> PacketEngine:
    """Return an engine on which a program was played."""
    engine = PacketEngine(twin.fabric, twin.routes, options_with(**options))
    engine.post(operations(*program), communications, twin.fabric.gpu_node)
    engine.advance()
    return engine


def results(engine: PacketEngine) -> dict[str, list[int]]:
    """Everything that a run says of itself."""
    found = {"started": engine.started_ps().tolist(), "ended": engine.ended_ps().tolist()}
    totals = engine.packets.totals()
    found |= {"created": [totals.created], "hops": [totals.hops]}
    qp = engine.network.machine.state.qp[: engine.network.machine.queue_pairs]
    found |= {name: qp[name].tolist() for name in ("una", "expected", "in_memory", "next_psn")}
    clock = engine.network.machine.state.clock[0]
    found |= {name: [int(clock[name])] for name in ("delivered", "payload_delivered", "dropped", "open")}
    return found | {name: counts.tolist() for name, counts in engine.packets.port_counters().items()}
