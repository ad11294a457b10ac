"""Closed forms of TCP sockets: what limits a stream, what a message waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fabrictwin import catalog
from fabrictwin.engines.sockets.request import one_way_ps, polled_step_ps
from fabrictwin.engines.sockets.stack import Costs, Processor, Stack, ends, wire
from fabrictwin.engines.sockets.stream import Streams, limits_bps, stream_bps

COSTS = Costs.of(catalog.host_stack("linux"))
CHIP = Processor.of(catalog.chip("xeon-8480c"))


def stack(network="ethernet", rate=100e9, mtu=0, path="host", cores="", costs=COSTS) -> Stack:
    return Stack(wire(network, rate, mtu), ends(path, network, cores), CHIP, costs)


def test_a_slow_wire_is_filled_but_for_headers():
    """1,448 of 1,538 bytes at an MTU of 1,500, as iperf shows at 10 Gb/s: 9.41."""
    bps, part = stream_bps(stack(rate=10e9), Streams())
    assert part == "wire"
    assert bps == pytest.approx(10e9 * 1448 / 1538)


def test_one_core_that_does_all_of_receiving_moves_what_the_catalog_says():
    bps, part = stream_bps(stack(cores="together"), Streams(write_bytes=1 << 40))
    assert part == "reader"
    assert bps == pytest.approx(catalog.chip("xeon-8480c").tcp_receive.value, rel=0.01)


def test_readers_are_as_many_as_threads_and_interrupted_cores_as_streams():
    fast = stack(rate=1e15)
    one, threads, both = (limits_bps(fast, Streams(*n)) for n in ((1, 1), (1, 4), (4, 4)))
    assert threads["reader"] == pytest.approx(4 * one["reader"])
    assert threads["sender"] == pytest.approx(4 * one["sender"])
    assert threads["interrupts"] == one["interrupts"]
    assert both["interrupts"] == pytest.approx(4 * one["interrupts"])


def test_zero_copy_leaves_the_interrupted_core_as_the_limit():
    assert stream_bps(stack(path="zero-copy", rate=400e9, cores="apart"), Streams(write_bytes=1 << 40))[1] in (
        "interrupts",
        "sender",
    )
    shared = stream_bps(stack(path="zero-copy", rate=400e9, cores="together"), Streams())[0]
    assert shared > 1.5 * stream_bps(stack(rate=400e9, cores="together"), Streams())[0]


def test_small_writes_are_bound_by_calls():
    def rate(size: int) -> float:
        return limits_bps(stack(), Streams(write_bytes=size))["sender"]

    assert rate(100) == pytest.approx(8e12 * 100 / COSTS.call, rel=0.1)
    assert rate(100) < rate(1500) < rate(16384) < rate(1 << 20)


def test_what_leaves_at_once_takes_the_stack_once_a_write():
    bps = limits_bps(stack(), Streams(write_bytes=1000, at_once=True))["sender"]
    assert bps == pytest.approx(8e12 * 1000 / (COSTS.call + COSTS.segment), rel=0.1)


def test_without_cutting_every_packet_is_a_segment():
    datagram = stack("ipoib-datagram")
    assert datagram.wire.mtu_bytes == 4092
    assert datagram.segment_bytes() == 4092 - 52
    assert stack("ipoib-datagram", rate=20e9).wire.mtu_bytes == 2044
    connected = stack("ipoib-connected")
    assert connected.segment_bytes() == stack().segment_bytes() == 65536
    one, other = (limits_bps(way, Streams())["interrupts"] for way in (datagram, connected))
    assert other > 3 * one
    assert limits_bps(stack(path="tunnel", mtu=1500), Streams())["interrupts"] < one


def test_a_message_waits_for_every_part():
    base = one_way_ps(stack(), 64)
    assert base - one_way_ps(stack(), 64, polling=True) == pytest.approx(COSTS.wake)
    assert one_way_ps(stack(path="vm"), 64) - base == pytest.approx(COSTS.virtual)
    assert base - one_way_ps(stack(), 64, moderated=False) == pytest.approx(2e6)
    pod = one_way_ps(stack(path="pod"), 64) - base
    assert pod == pytest.approx(COSTS.namespace + 2 * COSTS.segment)
    for name in ("call", "segment", "packet"):
        more = replace(COSTS, **{name: getattr(COSTS, name) + 1e6})
        assert one_way_ps(stack(costs=more), 64) - base == pytest.approx(
            {"call": 2e6, "segment": 2e6, "packet": 1e6}[name], rel=0.02
        )


def test_segments_of_a_long_message_pass_the_parts_one_behind_the_other():
    """Many segments take what the slowest part takes of each, not the sum of all parts."""
    long = stack(rate=10e9)
    size = 100 * long.segment_bytes()
    assert one_way_ps(long, size) == pytest.approx(long.wire.ps(size), rel=0.05)


def test_a_step_of_nccl_takes_two_stacks_and_its_header():
    step = polled_step_ps(stack())
    assert step > 3 * COSTS.segment + 3 * COSTS.call
    assert step < one_way_ps(stack(), 1)


def test_wires_of_connected_mode_count_the_packets_that_adapters_cut():
    assert stack("ipoib-connected").wire.header_bytes == 4 + 16 * (8 + 12 + 4 + 2)
    assert stack("ipoib-datagram").wire.header_bytes == 4 + 8 + 12 + 8 + 4 + 2
