"""Partition keys that change while packets are under way: what they keep out, and what comes of it."""

from __future__ import annotations

import numpy as np
import pytest
from support.clusters import boxes

from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.transfers import Transfers
from fabrictwin.engines.flow.flow_engine import FlowEngine
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.kernel.packet.invariants import violations
from fabrictwin.routing.partition_keys import may_talk
from fabrictwin.routing.port_settings import PortSettings

US = 10**6
EVERYBODY = np.full(4, 0xFFFF)


def keys(**others):
    """Keys of four adapters, all full members of the default partition but for these (`a2=0x8001`)."""
    found = EVERYBODY.copy()
    for name, key in others.items():
        found[int(name[1:])] = key
    return found


@pytest.mark.parametrize(
    ("a", "b", "talk"),
    [
        (0xFFFF, 0xFFFF, True),
        (0xFFFF, 0x7FFF, True),
        (0x7FFF, 0x7FFF, False),  # limited members of one partition do not reach each other
        (0x8001, 0xFFFF, False),
        (0, 0, False),
        (0x8000, 0x8000, False),
    ],
)
def test_two_ends_are_in_one_partition_and_one_of_them_is_a_full_member(a, b, talk):
    pair = np.array([a, b])
    ends = np.array([0, 1], np.int32)
    assert may_talk(pair, ends, ends[::-1]).tolist() == [talk, talk]


def at(time_ps, held):
    return TimedChange(time_ps, settings=PortSettings(keys=held))


def playing(flows, changes, **options):
    twin = boxes(4, "infiniband")
    engine = PacketEngine(twin.fabric, twin.routes, options_with(**options))
    for change in changes:
        engine.change(change)
    source, target, size = (np.array(column) for column in zip(*flows, strict=True))
    engine.transfer(Transfers(source.astype(np.int32), target.astype(np.int32), size))
    return engine


FLOWS = [(0, 1, 4_000_000), (2, 3, 4_000_000), (3, 0, 4_000_000)]


def test_a_key_that_goes_for_a_while_costs_its_flows_what_it_kept_out_and_others_nothing():
    calm = playing(FLOWS, [], timeout=6)
    calm.advance()
    gone = [
        at(40 * US, keys(a1=0x8001)),
        at(60 * US, EVERYBODY),
    ]
    engine = playing(FLOWS, gone, timeout=6)
    engine.advance()
    before, after = (np.asarray(each.transfer_times().done_ps) for each in (calm, engine))
    assert after[1] == before[1]
    assert after[2] == pytest.approx(before[2], rel=0.01)  # its link has acknowledgements of the first
    assert after[0] > before[0] + 19 * US  # what was kept out is sent again, asked for by a NAK
    counted = engine.packets.adapter_counters()
    assert counted["P_KeyViolations"][[0, 2, 3]].tolist() == [0, 0, 0]
    lost = int(counted["P_KeyViolations"][1])
    assert lost > 100  # 20 us of its link
    assert counted["packet_seq_err"].tolist() == [1, 0, 0, 0]
    assert counted["retransmitted_packets"][0] >= lost
    assert not violations(engine.network.machine.state)


def test_a_key_that_stays_away_ends_in_retries_exhausted():
    engine = playing(FLOWS, [at(40 * US, keys(a1=0))], timeout=2, retry_count=2)
    engine.advance()
    done = np.asarray(engine.transfer_times().done_ps)
    assert (done < 0).tolist() == [True, False, False]
    assert engine.packets.adapter_counters()["local_ack_timeout_err"][0] == 3
    assert int(engine.network.machine.state.qp.failed[:3].sum()) == 1


def test_connections_that_come_later_are_held_to_the_keys_too():
    engine = playing(FLOWS, [at(10 * US, keys(a1=0x7FFF, a2=0x7FFF))])
    engine.advance()  # a full and a limited member reach each other
    assert (np.asarray(engine.transfer_times().done_ps) > 0).all()
    late = engine.network.connections.connect([engine.network.connections.remote(1, 2)])
    assert engine.network.machine.state.qp.ack_every[late] < 0
    fine = engine.network.connections.connect([engine.network.connections.remote(1, 3)])
    assert engine.network.machine.state.qp.ack_every[fine] > 0


def test_what_has_no_packets_refuses_keys():
    twin = boxes(4, "infiniband")
    with pytest.raises(ConfigError, match="keys of ports at fidelity flow, expected packet"):
        FlowEngine(twin.fabric, twin.routes).change(at(0, EVERYBODY))
    ethernet = boxes(4, "ethernet")
    engine = PacketEngine(ethernet.fabric, ethernet.routes, options_with())
    with pytest.raises(ConfigError, match="expected InfiniBand"):
        engine.change(at(0, EVERYBODY))
