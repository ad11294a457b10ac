"""A congestion control for each class of traffic: TCP beside RDMA, in one lane and in its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.clusters import boxes

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.packet_section import Packet
from fabrictwin.engines.packet.packet_options import options_of
from fabrictwin.tools.traffic.connection_matrix import Traffic
from fabrictwin.tools.traffic.play_traffic import TrafficResult, play_traffic

MB = 1_000_000
RDMA, TCP = 0, 1


@pytest.fixture(scope="module")
def network() -> tuple[Any, Any]:
    twin = boxes(8, "ethernet")
    return twin.fabric, twin.routes


MIXED = (RDMA,) * 2 + (TCP,) * 4


def played(
    network: tuple[Any, Any], size: int = 4 * MB, levels: tuple[int, ...] = MIXED, **packet: Any
) -> TrafficResult:
    """Flows into one adapter, each at a service level; those of TCP have CUBIC."""
    n = len(levels)
    section = Packet.model_validate({"control": "dcqcn", "controls": {TCP: "cubic"}, **packet})
    none = np.full(n, -1, np.int32)
    traffic = Traffic(
        nodes=8,
        source=np.arange(1, n + 1, dtype=np.int32),
        destination=np.zeros(n, np.int32),
        size_bytes=np.full(n, size, np.int64),
        start_ps=np.zeros(n, np.int64),
        trigger=none,
        send_done=none,
        receive_done=none,
        level=np.array(levels, np.int32),
        triggers={},
    )
    return play_traffic(traffic, *network, options_of(section, "ethernet", 1), slowdown=False)


def mean_us(result: TrafficResult, level: int) -> float:
    return float(result.completion_ps[result.traffic.level == level].mean()) / 1e6


def controls(result: TrafficResult) -> list[str]:
    """The control that each flow's queue pair has in the kernel."""
    from fabrictwin.kernel.packet.congestion import Control

    network = result.engine.network  # type: ignore[attr-defined]
    return [
        Control(each).name.lower() for each in network.machine.state.qp.control[: len(result.traffic)].tolist()
    ]


def test_each_flow_has_the_control_of_its_class(network):
    assert controls(played(network, 1 * MB)) == ["dcqcn"] * 2 + ["cubic"] * 4
    assert controls(played(network, 1 * MB, controls=None)) == ["dcqcn"] * 6


def test_tcp_in_its_own_class_takes_less_from_rdma_than_in_one_with_it(network):
    """In one lane CUBIC fills the queue that DCQCN is marked for; in lanes of their own they share by turns."""
    together, apart = played(network, virtual_lanes=1), played(network, virtual_lanes=2)
    assert mean_us(apart, RDMA) < 0.9 * mean_us(together, RDMA)
    assert mean_us(apart, TCP) > mean_us(together, TCP)
    alone = played(network, levels=(RDMA,) * 2, virtual_lanes=1)
    assert mean_us(alone, RDMA) < mean_us(apart, RDMA)


def test_rdma_before_tcp_goes_as_if_it_were_alone(network):
    first = played(network, virtual_lanes=2, strict_priorities=[RDMA])
    alone = played(network, levels=(RDMA,) * 2, virtual_lanes=2)
    assert mean_us(first, RDMA) == pytest.approx(mean_us(alone, RDMA), rel=0.05)


def test_a_lossy_class_drops_where_the_other_pauses(network):
    small = {"virtual_lanes": 2, "buffer": "1 MB", "control": "none"}
    lossy = played(network, lossy_priorities=[TCP], **small).summary()
    assert lossy["packets"]["dropped"] > 0
    assert (
        played(network, levels=(RDMA,) * 6, lossy_priorities=[TCP], **small).summary()["packets"]["dropped"] == 0
    )
    assert played(network, **small).summary()["packets"]["dropped"] == 0


def test_only_rdmas_lane_marks(network):
    """CUBIC asks for no marks, so that its lane has none."""
    assert played(network, levels=(TCP,) * 6, virtual_lanes=2).summary()["packets"]["ecn_marked"] == 0
    assert played(network, levels=(TCP,) * 6, virtual_lanes=1).summary()["packets"]["ecn_marked"] > 0


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        ({"controls": {1: "nscc"}}, "got controls with nscc"),
        ({"controls": {1: "cubic"}, "control": "nscc"}, "got controls with nscc"),
        ({"lossless": False, "lossy_priorities": [1]}, "got lossy_priorities with lossless: false"),
        ({"controls": {16: "cubic"}}, "less than or equal to 15"),
        ({"dcqcn": "hpcc", "controls": {1: "cubic"}}, "got dcqcn, which means nothing"),
    ],
)
def test_what_means_nothing_is_refused(packet, message):
    with pytest.raises(ValueError, match=message):
        Packet.model_validate(packet)


def test_infiniband_has_none():
    with pytest.raises(ConfigError, match="got controls on InfiniBand"):
        options_of(Packet.model_validate({"controls": {1: "cubic"}}), "infiniband", 1)
