"""A capture with every opcode, of both technologies, for tests."""

from __future__ import annotations

from pathlib import Path

from support.clusters import boxes
from support.flow_options import flow_options

from fabrictwin.capture.pcapng import CaptureWriter
from fabrictwin.capture.recorder import Recorder
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.messages import (
    Contents,
    EventKind,
    GidType,
    Message,
    Opcode,
    Service,
)
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_with

US = 1_000_000
PAYLOAD = bytes(range(256)) * 64
ANSWERS = {
    Opcode.READ_REQUEST: Opcode.READ_RESPONSE,
    Opcode.COMPARE_SWAP: Opcode.ATOMIC_RESPONSE,
    Opcode.FETCH_ADD: Opcode.ATOMIC_RESPONSE,
}
IPV6 = bytes.fromhex("20010db8000000000000000000000000")


def settle(engine: PacketEngine, back: dict[int, int], asked: dict[int, int]) -> list:
    """Play to the end; requests are answered on the flow back."""
    seen = []
    while events := engine.advance().events:
        seen += events
        for e in events:
            if e.kind == EventKind.ARRIVED and e.message in asked:
                opcode, size = asked.pop(e.message)
                shown = Contents(payload=PAYLOAD[:size])
                answer = Message(size, ANSWERS[opcode], answers=e.message, contents=shown)
                engine.send(back[e.message >> 40], answer)
    return seen


def write(
    path: Path,
    technology: str,
    *,
    sizes: tuple[int, ...] = (16, 4096, 9000),
    snaplen: int = 0,
    adapters: tuple[int, ...] = (0,),
    kind: GidType | None = None,
    ipv6: bool = False,
    faults: bool = False,
    **options,
) -> PacketEngine:
    """Every opcode of RC, UC and UD between adapters 0 and 7, captured at `adapters`."""
    twin = boxes(8, technology)
    engine = PacketEngine(twin.fabric, twin.routes, options_with(**options))
    gids = {}
    if ipv6:
        gids = {"source_gid": IPV6[:15] + b"\1", "target_gid": IPV6[:15] + b"\2"}
    back_gids = dict(zip(gids, list(gids.values())[::-1], strict=True))
    with Recorder(engine.packets, CaptureWriter(path, snaplen=snaplen), adapters):
        flows, back = {}, {}
        for i, service in enumerate(Service):
            common = {"service": service, "gid_type": kind, "first_psn": 0xFFFFF0, "queue_key": 0x11111111}
            common |= {"traffic_class": 106, "timeout": 4, "global_route": ipv6 and technology == "infiniband"}
            here, there = 0x100 + i, 0x200 + i
            flows[service] = engine.open(
                0, 7, options=flow_options(source_qpn=here, target_qpn=there, **common, **gids)
            )
            back[flows[service]] = engine.open(
                7, 0, options=flow_options(source_qpn=there, target_qpn=here, **common, **back_gids)
            )
        asked: dict = {}
        if faults:
            port = int(twin.fabric.nic_port[0])
            engine.change(TimedChange(6 * US, port, 0))
            engine.change(TimedChange(7 * US, port))
        for size in sizes:
            for opcode in Opcode:
                if opcode in (Opcode.READ_RESPONSE, Opcode.ATOMIC_RESPONSE):
                    continue
                for service, flow in flows.items():
                    if service != Service.RELIABLE_CONNECTION and (
                        opcode in ANSWERS or "INVALIDATE" in opcode.name
                    ):
                        continue
                    if service == Service.UNRELIABLE_DATAGRAM and (size > 4096 or "WRITE" in opcode.name):
                        continue
                    length = 8 if opcode in (Opcode.COMPARE_SWAP, Opcode.FETCH_ADD) else size
                    shown = Contents(0x7F0000000000, 0xABCD, 0x1234, (5, 6), memoryview(PAYLOAD)[:length])
                    message = engine.send(flow, Message(length, opcode, contents=shown))
                    if opcode in ANSWERS:
                        asked[message] = (opcode, length)
        settle(engine, back, asked)
    return engine
