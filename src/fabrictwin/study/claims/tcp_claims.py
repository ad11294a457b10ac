"""Claims about TCP, with and without InfiniBand under it."""

from __future__ import annotations

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I32
from fabrictwin.base.units import PS_PER_MS, format_rate, format_time
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.engines.sockets.request import one_way_ps
from fabrictwin.engines.sockets.stack import Costs, Ends, Network, Processor, Stack, wire
from fabrictwin.engines.sockets.stream import Streams, stream_bps
from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.study.claims.claim import Claim, Judgement
from fabrictwin.study.claims.claim_settings import spec, twin
from fabrictwin.study.claims.loss_claims import CROWD, INCAST, first_gpus, incast_program
from fabrictwin.study.compare.packet_measurements import small_message_ps

SMALL = 64  # bytes
RATE_BPS = 100e9
SHALLOW = 4 << 20  # bytes of a switch's buffer


def _chip() -> catalog.Chip:
    return catalog.chip(catalog.host("dgx-h100").chips["cpu"])


def _stack(network: Network, *, offload: bool = True) -> Stack:
    """Two hosts at 100 Gb/s."""
    costs = Costs.of(catalog.host_stack("linux"))
    return Stack(wire(network, RATE_BPS), Ends(offload=offload), Processor.of(_chip()), costs)


def _incast(control: str, *, lossless: bool) -> tuple[int, int]:
    """(time, drops) of an incast into a shallow buffer."""
    crowd = twin(spec(CROWD + 1, network="ethernet"))
    pairs = np.array([[i, 0] for i in range(1, CROWD + 1)])
    options = options_with(control=control, lossless=lossless, buffer_bytes=SHALLOW)
    engine = crowd.start_engine("packet", options)
    trace = play(incast_program(pairs, INCAST, CROWD + 1), first_gpus(crowd), engine)
    return trace.end_ps, 0 if trace.counters.drops is None else int(trace.counters.drops.sum())


def _nccl_ps() -> tuple[int, int]:
    """NCCL's send of 8 bytes between two hosts over RDMA and over sockets."""
    where = twin(spec(network="ethernet"))
    gpus: I32 = where.fabric.gpu_node
    pair = np.array([gpus[0], gpus[-1]], np.int32)
    found = []
    for environment in ({}, {"NCCL_IB_DISABLE": "1"}):
        communicator = initialise(where, pair, settings=read_settings(environment))
        found.append(int(measure(communicator, [(Task("send_recv", 8, 4), None)])[0]))
    return found[0], found[1]


def tcp() -> Claim:
    rdma = small_message_ps(twin(spec(network="ethernet")))
    stack = _stack("ethernet")
    socket = round(one_way_ps(stack, SMALL))
    nccl_rdma, nccl_sockets = _nccl_ps()
    crowded = {name: _incast(name, lossless=False) for name in ("cubic", "dctcp")}
    paused = _incast("none", lossless=True)
    segment, processor = stack.segment_bytes(), stack.processor
    send = stack.send_ps(segment) / segment * RATE_BPS / 8e12
    receive = (stack.receive_ps(segment) + processor.copy_ps * segment) / segment * RATE_BPS / 8e12
    one, bound = stream_bps(stack, Streams())
    slow = crowded["cubic"][0]
    if socket > PS_PER_MS:
        judgement = Judgement.HOLDS
    else:
        judgement = Judgement.CONDITIONS if slow > 10 * paused[0] else Judgement.OFF
    return Claim(
        key="tcp",
        statement="RDMA takes microseconds where TCP/IP takes milliseconds, and TCP takes processors: how many at "
        "100 Gb/s?",
        experiment=f"A message of {SMALL} bytes over sockets, by the costs of Linux's stack that hold against published "
        "sockets (`validate sockets`); NCCL's send of 8 bytes; packet by packet, "
        f"{INCAST >> 20} MiB from each of {CROWD} hosts to one at 400 Gb/s, through a switch with {SHALLOW >> 20} MiB.",
        figures=(
            ("RoCE, an empty message, GPU to GPU", format_time(rdma)),
            (f"TCP, {SMALL} bytes, program to program", format_time(socket)),
            ("NCCL send, RoCE", format_time(nccl_rdma)),
            ("NCCL send, sockets", format_time(nccl_sockets)),
            *(
                (f"{CROWD} to 1, TCP with {name.upper()}", f"{format_time(ps)}, {drops:,} dropped")
                for name, (ps, drops) in crowded.items()
            ),
            (f"{CROWD} to 1, RoCE with PFC", f"{format_time(paused[0])}, {paused[1]:,} dropped"),
            ("one TCP stream", f"{format_rate(round(one))}, set by the {bound}"),
            ("cores that send 100 Gb/s by TCP", f"{send:.2g}"),
            ("cores that receive 100 Gb/s by TCP", f"{receive:.2g}"),
            ("cores that RDMA takes", "0: adapters move the bytes"),
        ),
        judgement=judgement,
        why=f"Unloaded, TCP takes {socket / rdma:.1f} times as long, microseconds too: calls, the stack, interrupts and the way to "
        f"a reader that sleeps. Milliseconds come when packets are lost and nothing is left to tell of it: after at least "
        f"{format_time(catalog.host_stack('linux').limits.least_rto.value)} TCP sends again. What marks prevent, DCTCP does not "
        "wait for. Always it costs cores, and copies through host memory.",
    )


def ipoib() -> Claim:
    found = {
        "datagram mode": _stack("ipoib-datagram", offload=False),
        "connected mode": _stack("ipoib-connected", offload=False),
        "datagram mode, segments cut and merged by the adapter": _stack("ipoib-datagram"),
    }
    one = {name: stream_bps(stack, Streams())[0] for name, stack in found.items()}
    many = {name: stream_bps(stack, Streams(count=8, threads=8))[0] for name, stack in found.items()}
    plain, connected, cut = one.values()
    return Claim(
        key="ipoib",
        statement="Connected mode makes IPoIB faster.",
        experiment="TCP streams over IPoIB at 100 Gb/s by the costs of Linux's stack: packets of "
        f"{found['datagram mode'].wire.mtu_bytes:,} bytes in datagram mode, of "
        f"{found['connected mode'].wire.mtu_bytes:,} in connected mode (RFC 4391, RFC 4755).",
        figures=(
            *((f"one stream, {name}", format_rate(round(bps))) for name, bps in one.items()),
            *((f"8 streams of 8 threads, {name}", format_rate(round(bps))) for name, bps in many.items()),
        ),
        judgement=Judgement.CONDITIONS if connected > 1.2 * plain and cut > 0.8 * connected else Judgement.OFF,
        why=f"Where the host handles each packet by itself, {connected / plain:.1f} times on one stream; with many streams the "
        "wire is soon full in both. Adapters that cut and merge segments do so in datagram mode only, and are as fast there, "
        "which is why newer drivers removed connected mode.",
    )
