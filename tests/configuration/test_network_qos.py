"""Configurations played packet by packet: what is right loses nothing, what is wrong drops or stands still."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import headroom_trial as trial
from support.configured import planned, spec_of, written

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.grouped import grouped
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec, read_spec
from fabrictwin.configuration.network_qos import with_network_qos
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.messages import EventKind, FlowOptions, Message, Opcode
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_of
from fabrictwin.twin.routed_twin import make_twin

MIB = 1 << 20
MS = 10**9
Edit = Callable[[list[dict[str, Any]]], None]


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    read = written(planned(), tmp_path_factory.mktemp("configured"), ("sonic", "host"))
    return with_network_qos(spec_of(), read.configuration)


class Incast:
    """Three hosts that write to one adapter, over switches whose pool is small beside what they send."""

    def __init__(self, spec: Spec, edit: Edit | None = None, **more: Any) -> None:
        data = spec.to_dict()
        if edit is not None:
            edit(data["cluster"]["network"]["qos"]["ports"])
        self.spec = read_spec(data)
        self.twin = make_twin(self.spec, build(self.spec.cluster, spec=self.spec))
        options = options_of(None, "ethernet", 1, self.spec.qos)
        self.engine = PacketEngine(
            self.twin.fabric, self.twin.routes, grouped(options, {"buffer_bytes": 12 * MIB, **more})
        )
        self.ended: set[int] = set()
        fabric = self.twin.fabric
        self.adapter = {fabric.node_name(int(node)): n for n, node in enumerate(fabric.nic_node)}

    def port(self, name: str) -> int:
        return int(self.twin.fabric.nic_port[self.adapter[name]])

    def send(self, sources: tuple[int, ...] = (1, 2, 3), *, messages: int = 8, rail: str = "mlx5_0") -> None:
        for host in sources:
            flow = self.engine.open(
                self.adapter[f"host-{host}/{rail}"], self.adapter[f"host-0/{rail}"], options=FlowOptions()
            )
            for _ in range(messages):
                self.engine.send(flow, Message(MIB, Opcode.WRITE))

    def until(self, time_ps: int) -> None:
        """Advance to a time; messages that ended are kept."""
        while self.engine.now_ps < time_ps:
            for event in self.engine.advance(time_ps).events:
                if event.kind == EventKind.ENDED:
                    self.ended.add(event.message)

    def play(self) -> Any:
        while self.engine.advance().events:
            pass
        return self.engine.packets.totals()


def _of(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(row for row in rows if any(port.startswith(name) for port in row["ports"]))


def test_a_right_configuration_pauses_and_drops_nothing(configured: Spec) -> None:
    incast = Incast(configured)
    incast.send()
    totals = incast.play()
    assert totals.dropped == 0
    assert totals.pause_frames > 0
    assert totals.ecn_marked > 0


def _adapters_ignore_pauses(rows: list[dict[str, Any]]) -> None:
    _of(rows, "host-")["obeys"] = []


def _adapters_in_another_priority(rows: list[dict[str, Any]]) -> None:
    row = _of(rows, "host-")
    row["groups"] = row["queues"] = {"26": 4}
    row["pauses"] = row["obeys"] = [4]


def _switch_sends_no_pauses(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["ports"][0].startswith("leaf-"):
            row["pauses"] = []


def _switch_maps_dscp_to_lossy(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["ports"][0].startswith("leaf-"):
            row["groups"] = {}


def _no_headroom(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["ports"][0].startswith("leaf-"):
            row["priorities"]["3"]["headroom"] = "0 B"


@pytest.mark.parametrize(
    "edit",
    [
        _adapters_ignore_pauses,
        _adapters_in_another_priority,
        _switch_sends_no_pauses,
        _switch_maps_dscp_to_lossy,
        _no_headroom,
    ],
)
def test_a_mismatch_drops(configured: Spec, edit: Edit) -> None:
    right, wrong = Incast(configured), Incast(configured, edit)
    for incast in (right, wrong):
        incast.send()
        incast.play()
    totals = wrong.engine.packets.totals()
    assert totals.dropped > 0
    assert totals.retransmitted > 0
    if edit is not _no_headroom:  # a few packets alone
        assert wrong.engine.now_ps > 1.1 * right.engine.now_ps


def test_a_small_mtu_drops_every_full_frame(configured: Spec) -> None:
    def small(rows: list[dict[str, Any]]) -> None:
        _of(rows, "leaf-0/1")["frame"] = "1518 B"

    incast = Incast(configured, small)
    incast.send((1,), messages=1)
    incast.until(MS)
    totals = incast.engine.packets.totals()
    assert totals.dropped > 0
    assert not incast.ended


def test_congestion_control_marks_by_port_and_pauses_less(configured: Spec) -> None:
    plain, controlled = Incast(configured), Incast(configured, control="dcqcn")
    for incast in (plain, controlled):
        incast.send(messages=16)
        incast.play()
    assert controlled.engine.packets.totals().cnps > 0
    assert controlled.engine.packets.totals().pause_frames < plain.engine.packets.totals().pause_frames


def _watched(detection: str | None) -> Edit:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row.pop("watchdog", None)
            if detection is not None and not row["ports"][0].startswith("host-"):
                row["watchdog"] = {"detection": detection, "restoration": "200 us"}

    return change


@pytest.mark.second
def test_a_pause_storm_stops_a_rail_and_a_watchdog_frees_it(configured: Spec) -> None:
    """Host 0 pauses without end: host 1 sends to it and is paused; what it has for host 2 waits."""
    freed = {}
    for detection in (None, "200 us"):
        incast = Incast(configured, _watched(detection))
        incast.engine.change(TimedChange(0, incast.port("host-0/mlx5_0"), pause=(3, True)))
        incast.send((1,), messages=16)
        incast.until(100_000_000)
        victim = incast.engine.open(
            incast.adapter["host-1/mlx5_0"], incast.adapter["host-2/mlx5_0"], options=FlowOptions()
        )
        message = incast.engine.send(victim, Message(MIB, Opcode.WRITE))
        incast.until(20 * MS)
        freed[detection] = message in incast.ended
        storms = int(incast.engine.network.machine.state.slot_qos.storms.sum())
        assert (storms > 0) == (detection is not None)
        assert (incast.engine.packets.totals().dropped > 0) == (detection is not None)
    assert freed == {None: False, "200 us": True}


def test_a_storm_that_ends_lets_everything_through(configured: Spec) -> None:
    incast = Incast(configured, _watched(None))
    port = incast.port("host-0/mlx5_0")
    incast.engine.change(TimedChange(0, port, pause=(3, True)))
    incast.engine.change(TimedChange(2 * MS, port, pause=(3, False)))
    incast.send((1,), messages=2)
    totals = incast.play()
    assert totals.dropped == 0
    assert incast.engine.now_ps > 2 * MS


def test_rows_name_ports_that_are_there(configured: Spec) -> None:
    def unknown(rows: list[dict[str, Any]]) -> None:
        rows[0]["ports"] = ["leaf-0/999"]

    with pytest.raises(ConfigError, match=r"ports\[0\].ports: got 'leaf-0/999'"):
        Incast(configured, unknown)


def test_the_same_configuration_gives_the_same_run(configured: Spec) -> None:
    ends = []
    for _ in range(2):
        incast = Incast(configured, _adapters_ignore_pauses)
        incast.send()
        incast.play()
        ends.append((incast.engine.now_ps, incast.engine.packets.totals()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "assumed",
    [
        trial.of_spectrum("spectrum-1", 100, 5),
        trial.of_spectrum("spectrum-3", 400, 40),
        trial.of_spectrum("spectrum-4", 100, 300),
        trial.of_spectrum("spectrum-4", 400, 40, gearbox_ns=500),
        trial.of_spectrum("spectrum-5", 800, 5),
        trial.of_mlx5(40, 40, 9122),
        trial.of_mlx5(40, 300, 4222),
        trial.of_mlx5(100, 5, 9122),
        trial.of_mlx5(400, 40, 4222),
        trial.of_mlx5(400, 300, 9122),
        trial.of_broadcom("tomahawk", 100, 300),
        trial.of_broadcom("tomahawk", 25, 10),
        trial.of_broadcom("tomahawk-4", 200, 80),
        trial.of_broadcom("tomahawk-5", 400, 40),
    ],
    ids=lambda assumed: assumed.name,
)
def test_headroom_is_enough_at_its_value_and_not_at_80_percent(assumed: trial.Assumptions) -> None:
    assert trial.play(assumed).dropped == 0
    assert trial.play(assumed, 0.8).dropped > 0


def test_large_frames_leave_a_margin() -> None:
    assumed = trial.of_spectrum("spectrum-4", 400, 40)
    outcome = trial.play(trial.with_frames(assumed, 4158))
    assert outcome.dropped == 0
    assert outcome.taken_bytes < 0.5 * assumed.headroom_bytes


def test_a_configuration_is_for_the_cluster_that_it_names(tmp_path: Path) -> None:
    read = written(planned(), tmp_path, ("sonic",))
    with pytest.raises(ConfigError, match="expected Ethernet"):
        with_network_qos(spec_of("infiniband"), read.configuration)
