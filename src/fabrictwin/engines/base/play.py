"""A program played through a session, from its first operation to its last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fabrictwin.base.errors import InvariantError, SimulatedError
from fabrictwin.engines.base.engine import LinkChange, Session, TimedChange
from fabrictwin.fabric.fabric import I32
from fabrictwin.program.program import Program
from fabrictwin.trace.trace import Trace

Drive = Callable[[Session, int, int], None]  # (session, when it began, operations): run all to the end


def play(
    program: Program,
    rank_node: I32,
    session: Session,
    changes: Sequence[TimedChange] = (),
    *,
    drive: Drive | None = None,
) -> Trace:
    """Post the whole program, run it to its end, and say what happened.

    `rank_node[r]` is the fabric node of rank r's memory; `changes` happen to links so long after the start, in
    that order. Where something beside the program goes on, `drive` runs the session instead. Raises
    InvariantError where it never ends, SimulatedError where that is a link's fault.
    """
    if not len(program.operations):
        raise InvariantError(f"{program.name} has no operations: a run that does nothing answers nothing")
    before = session.counters()
    first = session.post(program.operations, program.communications, rank_node)
    began = session.now_ps
    n = len(program.operations)
    if drive is None:
        _run(session, changes, began, first + n)
    else:
        drive(session, began, first + n)
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


def _run(session: Session, changes: Sequence[TimedChange], began: int, operations: int) -> None:
    """Advance to the end; what is still to happen to links when everything has ended never does."""
    if session.fidelity == "packet" and changes:
        from fabrictwin.engines.packet.packet_engine import PacketSession
        from fabrictwin.engines.packet.packet_network import LinkFault

        # its loop knows of changes to come: what waits for a repair is not stuck
        assert isinstance(session, PacketSession)
        for c in changes:
            session.network.at(LinkFault(began + c.time_ps, c.port, c.rate_bps, c.error_rate))
        session.advance()
        return
    down: set[int] = set()
    done = 0
    for change in changes:
        if change.error_rate is not None:
            raise InvariantError(f"bit errors at fidelity {session.fidelity}")
        done += len(session.advance(began + change.time_ps).operation)
        if done == operations:
            return
        session.change(LinkChange(change.port, change.rate_bps))
        (down.add if change.rate_bps == 0 else down.discard)(change.port)
    try:
        session.advance()
    except InvariantError as error:
        if not down:
            raise
        raise SimulatedError("link down", "a job that waits for it", str(error)) from None
