"""A program played through a session, from its first operation to its last."""

from __future__ import annotations

from fabrictwin.errors import InvariantError
from fabrictwin.fabric.fabric import I32
from fabrictwin.program.program import Program
from fabrictwin.simulate.session import Session
from fabrictwin.trace.trace import Trace


def play(program: Program, rank_node: I32, session: Session) -> Trace:
    """Post the whole program, run it to its end, and say what happened.

    `rank_node[r]` is the fabric node of rank r's memory. Raises InvariantError where it never ends.
    """
    if not len(program.operations):
        raise InvariantError(f"{program.name} has no operations: a run that does nothing answers nothing")
    before = session.counters()
    first = session.post(program.operations, program.communications, rank_node)
    began = session.now_ps
    session.advance()
    n = len(program.operations)
    started = session.started_ps()[first : first + n]
    ended = session.ended_ps()[first : first + n]
    counters = session.counters()
    moved = counters.since(before)
    if len(program.communications) and program.ranks > 1 and not moved.tx_bytes.any():
        raise InvariantError(f"{program.name} moved no bytes though it communicates")
    return Trace(
        fidelity=session.fidelity,
        end_ps=int(ended.max()) - began,
        start_ps=started - began,
        end_op_ps=ended - began,
        counters=moved,
    )
