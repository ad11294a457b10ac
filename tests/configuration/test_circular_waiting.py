"""Deadlock by a circle of full buffers: five switches in a ring, each with a host that sends two switches on."""

from __future__ import annotations

from typing import Any

import pytest
from support.flow_options import flow_options

from fabrictwin.base.errors import SimulatedError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.engines.base.messages import EventKind, Message, Opcode
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_of
from fabrictwin.twin.routed_twin import make_twin

RING = 5
MIB = 1 << 20
MS = 10**9


def _engine(watchdog: dict[str, str] | None, pauses: list[int]) -> PacketEngine:
    row: dict[str, Any] = {
        "ports": ["s*/*"],
        "pauses": pauses,
        "obeys": pauses,
        "groups": {26: 3},
        "queues": {26: 3},
        "priorities": {3: {"threshold": "100 KB", "headroom": "200 KB" if pauses else "0 B", "reserve": "0 B"}},
    }
    if watchdog is not None:
        row["watchdog"] = watchdog
    adapters = {
        "ports": ["h*/mlx5_0"], "pauses": [], "obeys": pauses, "groups": {26: 3}, "queues": {26: 3}
    }  # fmt: skip
    cables = [f"h{i}/mlx5_0 - s{i}/1 ; 100 Gb/s ; 3 m" for i in range(RING)]
    cables += [f"s{i}/2 - s{(i + 1) % RING}/3 ; 100 Gb/s ; 20 m" for i in range(RING)]
    spec = read_spec(
        {
            "schema": 1,
            "cluster": {
                "technology": "ethernet",
                "hosts": [{"name": f"h{i}", "type": "pcie-box-100g"} for i in range(RING)],
                "switches": [{"name": f"s{i}", "type": "spectrum-4"} for i in range(RING)],
                "cables": cables,
                "qos": {"ports": [row, adapters]},
            },
        }
    )
    twin = make_twin(spec, build(spec.cluster, spec=spec))
    return PacketEngine(twin.fabric, twin.routes, options_of(None, "ethernet", 1, spec.qos))


def _around(engine: PacketEngine, messages: int = 8) -> set[int]:
    """Everybody sends to the host two switches on; the messages that end in 60 ms."""
    sent = set()
    for host in range(RING):
        flow = engine.open(host, (host + 2) % RING, options=flow_options(timeout=8))
        sent |= {engine.send(flow, Message(MIB, Opcode.WRITE)) for _ in range(messages)}
    ended = set()
    while engine.now_ps < 60 * MS and ended < sent:
        for event in engine.advance(60 * MS).events:
            if event.kind == EventKind.ENDED:
                ended.add(event.message)
    assert ended == sent
    return ended


def test_a_circle_of_full_buffers_is_named() -> None:
    with pytest.raises(
        SimulatedError, match=r"deadlock: 10 outputs wait for each other for ever: s\d/2 lane 3 -> "
    ):
        _around(_engine(None, [3]))


def test_a_watchdog_breaks_it_at_the_price_of_drops() -> None:
    engine = _engine({"detection": "300 us", "restoration": "300 us"}, [3])
    assert _around(engine, messages=2)
    totals = engine.packets.totals()
    assert totals.dropped > 0
    assert totals.retransmitted > 0


def test_without_pauses_there_is_none() -> None:
    engine = _engine(None, [])
    assert _around(engine)
