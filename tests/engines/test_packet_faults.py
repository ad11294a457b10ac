"""Links that go down, flap, slow down or make errors at a time."""

from __future__ import annotations

import pytest
from support.clusters import boxes

from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base.changes import TimedChange, flapping
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.network.port_counters import port_counters
from fabrictwin.engines.packet.packet_options import options_with

US = 1_000_000


def one_flow(**options) -> PacketNetwork:
    """16 MB from adapter 0 to adapter 5."""
    twin = boxes(8)
    network = PacketNetwork(twin.fabric, twin.routes, options_with(timeout=5, **options))
    network.connections.connect([network.connections.remote(0, 5)])
    network.machine.add_tasks([1], [0], [16_000_000], [0])
    return network


def took(network: PacketNetwork) -> int:
    network.run()
    return int(network.machine.state.task.done_ps[0])


def test_a_link_that_slows_down_on_the_way_costs_the_rest_of_the_way():
    whole = took(one_flow())
    network = one_flow()
    port = int(network.fabric.nic_port[0])
    network.at(TimedChange(whole // 2, port, int(network.fabric.port_rate_bps[port]) // 4))
    assert took(network) == pytest.approx(whole // 2 + 4 * (whole - whole // 2), rel=0.01)


def test_a_flap_costs_what_it_lasts_and_what_was_sent_meanwhile():
    whole = took(one_flow())
    network = one_flow()
    port = int(network.fabric.nic_port[5])
    for fault in flapping(
        int(network.fabric.port_peer[port]), port, start_ps=100 * US, down_ps=50 * US, up_ps=0, times=1
    ):
        network.at(fault)
    end = took(network)
    assert whole + 50 * US < end < whole + 50 * US + 3 * 131 * US
    assert port_counters(network)["PortXmitDiscards"].sum() > 0
    assert network.machine.state.qp.naks[0] == 1  # what comes after the gap tells, no timeout is needed


def test_a_fault_after_the_end_changes_nothing():
    network = one_flow()
    network.at(TimedChange(10**12, int(network.fabric.nic_port[0]), 0))
    assert took(network) == took(one_flow())


def test_bit_errors_from_a_time_on_are_counted_from_then_on():
    network = one_flow()
    port = int(network.fabric.port_peer[network.fabric.nic_port[5]])
    network.at(TimedChange(300 * US, port, error_rate=1e-7))
    network.run(300 * US)
    assert port_counters(network)["PortRcvErrors"].sum() == 0
    network.run()
    errors = port_counters(network)["PortRcvErrors"].sum()
    assert errors > 0
    assert network.machine.state.qp.retransmitted[0] >= errors


def test_the_past_cannot_be_changed():
    network = one_flow()
    network.run(100 * US)
    with pytest.raises(ConfigError, match="got a change at 5 ps"):
        network.at(TimedChange(5, 0))
