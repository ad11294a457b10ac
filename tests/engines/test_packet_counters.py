"""Counters under their standard names, and queue depths over time."""

from __future__ import annotations

import numpy as np
import pytest
from support.clusters import boxes

from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.network.port_counters import adapter_counters, port_counters, watch
from fabrictwin.engines.packet.packet_options import options_with

MB = 1_000_000


def incast(technology: str = "ethernet", **options) -> PacketNetwork:
    """Adapters 0 to 3 send 2 MB each to adapter 7."""
    twin = boxes(8, technology)
    network = PacketNetwork(twin.fabric, twin.routes, options_with(**options))
    network.connections.connect([network.connections.remote(i, 7) for i in range(4)])
    network.machine.add_tasks([1] * 4, range(4), [2 * MB] * 4, [0] * 4)
    return network


@pytest.mark.parametrize("technology", ["ethernet", "infiniband"])
def test_what_one_end_sent_the_other_received_or_it_is_on_the_wire(technology):
    network = incast(technology)
    peer = network.fabric.port_peer
    plugged = peer >= 0
    network.run(50_000_000)
    counters = port_counters(network)
    sent, got = counters["PortXmitPkts"][peer[plugged]], counters["PortRcvPkts"][plugged]
    assert (sent >= got).all()
    assert (sent > got).any()
    network.run(drain=True)
    counters = port_counters(network)
    for name in ("Pkts", "Data"):
        assert (counters[f"PortXmit{name}"][peer[plugged]] == counters[f"PortRcv{name}"][plugged]).all()
    assert counters["PortXmitDiscards"].sum() == 0


def test_marks_cnps_and_pauses_stand_where_they_happened():
    network = incast(control="dcqcn")
    network.run(drain=True)
    ports, adapters = port_counters(network), adapter_counters(network)
    marked = np.flatnonzero(ports["ecn_marked"])
    hot = int(network.fabric.port_peer[network.fabric.nic_port[7]])
    assert hot in marked
    assert adapters["np_cnp_sent"][7] == adapters["np_cnp_sent"].sum() > 0
    assert adapters["rp_cnp_handled"][:4].sum() == adapters["np_cnp_sent"][7]
    assert ports["QueuePeakBytes"][hot] > 5_000  # where marking starts, at 40 Gb/s


def test_loss_shows_at_the_receiving_port_and_as_retransmission():
    network = incast(timeout=4)
    down = int(network.fabric.port_peer[network.fabric.nic_port[7]])
    network.machine.set_errors(down, 2**48 // 4_000_000)
    network.run(drain=True)
    ports, adapters = port_counters(network), adapter_counters(network)
    assert ports["PortRcvErrors"][network.fabric.nic_port[7]] == ports["PortRcvErrors"].sum() > 0
    assert adapters["out_of_sequence"][7] > 0
    assert adapters["retransmitted_packets"][:4].sum() > 0


def test_queue_depths_are_sampled_without_changing_the_run():
    watched, alone = incast(), incast()
    hot = int(watched.fabric.port_peer[watched.fabric.nic_port[7]])
    depths = watch(watched, np.array([hot], np.int32), period_ps=10_000_000, until_ps=10**12)
    alone.run()
    assert watched.machine.state.task.done_ps.tolist() == alone.machine.state.task.done_ps.tolist()
    assert (np.diff(depths.time_ps) == 10_000_000).all()
    # three of four arrivals wait: the queue grows at three times the rate until senders are done
    assert depths.queued_bytes.max() > MB
    assert depths.queued_bytes[-1, 0] < 100_000
