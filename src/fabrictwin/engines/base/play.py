"""A program played on an engine, from its first operation to its last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fabrictwin.base.arrays import I32
from fabrictwin.base.errors import InvariantError
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.engine import Engine
from fabrictwin.engines.base.messages import Message, Opcode
from fabrictwin.program.program import Program
from fabrictwin.trace.trace import Trace

Drive = Callable[[Engine, int, int], None]  # (engine, when it began, operations): run all to the end


def play(
    program: Program,
    rank_node: I32,
    engine: Engine,
    changes: Sequence[TimedChange] = (),
    *,
    drive: Drive | None = None,
) -> Trace:
    """Post the whole program, run it to its end, and return what happened.

    `rank_node[r]` is the fabric node of rank r's memory; `changes` happen so long after the start. Where something
    beside the program goes on, `drive` runs the engine instead. Raises InvariantError where it never ends,
    SimulatedError where that is a link's fault.
    """
    if not len(program.operations):
        raise InvariantError(f"{program.name} has no operations: a run that does nothing answers nothing")
    before = engine.counters()
    first = engine.post(program.operations, program.communications, rank_node)
    began = engine.now_ps
    n = len(program.operations)
    for change in changes:
        engine.change(replace(change, time_ps=began + change.time_ps))
    if drive is None:
        engine.advance()
    else:
        drive(engine, began, first + n)
    started = engine.started_ps()[first : first + n]
    ended = engine.ended_ps()[first : first + n]
    counters = engine.counters()
    moved = counters.since(before)
    if len(program.communications) and program.ranks > 1 and not moved.tx_bytes.any():
        raise InvariantError(f"{program.name} moved no bytes though it communicates")
    return Trace(
        fidelity=engine.fidelity,
        end_ps=int(ended.max()) - began,
        start_ps=started - began,
        end_op_ps=ended - began,
        counters=moved,
    )


def compile_messages(engine: Engine) -> None:
    """Send a short and a longer message on an engine without a flow, so that its kernels are compiled."""
    flow = engine.open(0, 0)
    for size in (8, 1 << 16):
        engine.send(flow, Message(size, Opcode.WRITE))
    while engine.advance().events:
        pass
