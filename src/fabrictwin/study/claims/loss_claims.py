"""Claims about loss and what prevents it."""

from __future__ import annotations

import numpy as np

from fabrictwin.base.units import format_time
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.packet_options import PacketOptions, options_with
from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.program import collectives
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.program.program import Program
from fabrictwin.study.claims.claim import Claim, Judgement
from fabrictwin.study.claims.claim_settings import spec, twin
from fabrictwin.twin.twin import Twin

MESSAGE = 64 << 20
INCAST = 8 << 20
CROWD = 7  # hosts that send to one: with it, as many as one switch joins


def incast_program(pairs: np.ndarray, size: int, ranks: int) -> Program:
    builder = ProgramBuilder("sends", ranks)
    every = builder.actor("all", np.arange(ranks))
    sent = collectives.send(pairs, size, name="send")
    builder.communicate(builder.communication(sent, [every]), builder.label("send", "other"))
    return builder.build()


def first_gpus(where: Twin) -> np.ndarray:
    """The first GPU of each host."""
    fabric = where.fabric
    first = np.unique(fabric.node_host[fabric.gpu_node], return_index=True)[1]
    return fabric.gpu_node[first].astype(np.int32)


def _goodput(where: Twin, options: PacketOptions, error_rate: float) -> tuple[float, int]:
    """(Gb/s, packets sent again) of one long message over links that spoil bits."""
    engine = where.start_engine("packet", options)
    assert engine.packets is not None
    nodes = first_gpus(where)
    fabric = where.fabric
    switch = np.flatnonzero((fabric.node_kind[fabric.port_node] == NodeKind.SWITCH) & (fabric.port_peer >= 0))
    changes = [TimedChange(0, int(port), None, error_rate) for port in switch] if error_rate else []
    took = play(incast_program(np.array([[0, 1]]), MESSAGE, len(nodes)), nodes, engine, changes).end_ps
    return 8e3 * MESSAGE / took, engine.packets.losses()[1]


def lost_packet() -> Claim:
    where = twin(spec(2, network="ethernet"))
    back = options_with(control="none", retransmission="go-back-n")
    selective = options_with(control="none", retransmission="selective")
    bits = 8 * 4180
    rates = (0.0, 1e-4, 1e-3, 1e-2)
    rows = {}
    for name, options in (("go-back-N", back), ("selective repeat", selective)):
        for loss in rates:
            rows[name, loss] = _goodput(where, options, loss / bits)
    crowd = twin(spec(CROWD + 1, network="ethernet"))
    pairs = np.array([[i, 0] for i in range(1, CROWD + 1)])
    incast = {}
    for name, options in (
        ("no flow control, 4 MiB of buffer", options_with(control="none", lossless=False, buffer_bytes=4 << 20)),
        ("PFC", options_with(control="none", lossless=True, buffer_bytes=4 << 20)),
        ("PFC and DCQCN", options_with(control="dcqcn", lossless=True, buffer_bytes=4 << 20)),
    ):
        engine = crowd.start_engine("packet", options)
        trace = play(incast_program(pairs, INCAST, CROWD + 1), first_gpus(crowd), engine)
        incast[name] = (trace.end_ps, 0 if trace.counters.drops is None else int(trace.counters.drops.sum()))
    ib = twin(spec(CROWD + 1))
    trace = play(
        incast_program(pairs, INCAST, CROWD + 1), first_gpus(ib), ib.start_engine("packet", PacketOptions())
    )
    incast["InfiniBand credits"] = (
        trace.end_ps,
        0 if trace.counters.drops is None else int(trace.counters.drops.sum()),
    )
    few, many = rates[1], rates[-1]
    collapse = rows["go-back-N", many][0] / rows["go-back-N", 0.0][0]
    one = rows["go-back-N", few][0] / rows["go-back-N", 0.0][0]
    lossy = incast["no flow control, 4 MiB of buffer"]
    prevented = all(drops == 0 for name, (_, drops) in incast.items() if "no flow" not in name)
    return Claim(
        key="loss",
        statement="A single lost packet collapses RoCE throughput; PFC and ECN prevent it; credits make InfiniBand "
        "lossless.",
        experiment=f"One message of {MESSAGE >> 20} MiB at 400 Gb/s over links that spoil packets at a rate; {INCAST >> 20} "
        f"MiB from each of {CROWD} hosts to one.",
        figures=(
            *(
                (f"{name}, {loss:g} of packets lost", f"{rate:.4g} Gb/s, {again:,} sent again")
                for (name, loss), (rate, again) in rows.items()
            ),
            *(
                (f"{CROWD} to 1, {name}", f"{format_time(ps)}, {drops:,} dropped")
                for name, (ps, drops) in incast.items()
            ),
        ),
        judgement=Judgement.CONDITIONS if prevented and lossy[1] > 0 else Judgement.WRONG,
        why=f"One packet in {1 / few:,.0f} leaves {one:.0%} of the goodput, one in {1 / many:,.0f} {collapse:.0%}: go-back-N sends a whole "
        "window again for each. Flow control prevents drops by congestion, not by bit errors, and credits neither.",
    )
