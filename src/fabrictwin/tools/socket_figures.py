"""Bandwidth and latency of TCP sockets between two hosts, as netperf, iperf and sockperf have them."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import format_rate, format_size, format_time
from fabrictwin.engines.sockets.request import one_way_ps
from fabrictwin.engines.sockets.stack import Cores, Costs, Network, Path, Processor, Stack, ends, wire
from fabrictwin.engines.sockets.stream import Streams, limits_bps
from fabrictwin.kernel.codes import PS_PER_S


@record
class SocketTest:
    """What is asked: the hosts, what joins them, how programs use it, the size of a request."""

    host: str
    rate_bps: int
    network: Network = "ethernet"
    mtu_bytes: int = 0
    path: Path = "host"
    cores: Cores = ""
    streams: Streams = field(default_factory=Streams)
    request_bytes: int = 64

    @property
    def stack(self) -> Stack:
        """The two hosts' stacks. Raises ConfigError for a host without figures of TCP, and too small packets."""
        chip = catalog.chip(catalog.host(self.host).chips["cpu"])
        try:
            processor = Processor.of(chip)
        except ValueError as error:
            raise ConfigError(str(error), key="--host") from None
        passed = ends(self.path, self.network, self.cores)
        costs = Costs.of(catalog.host_stack("linux"))
        return Stack(wire(self.network, self.rate_bps, self.mtu_bytes), passed, processor, costs)


@record
class SocketFigures:
    """Bits a second that each part lets through, and times of a request in picoseconds."""

    test: SocketTest
    limits: dict[str, float]
    one_way_ps: int
    polled_ps: int

    @property
    def limited_by(self) -> str:
        return min(self.limits, key=lambda part: self.limits[part])


def socket_figures(test: SocketTest) -> SocketFigures:
    """Return what the test shows. Raises ConfigError."""
    stack = test.stack
    return SocketFigures(
        test,
        limits_bps(stack, test.streams),
        round(one_way_ps(stack, test.request_bytes)),
        round(one_way_ps(stack, test.request_bytes, polling=True)),
    )


def as_data(found: SocketFigures) -> dict[str, Any]:
    """Return plain data, units in the keys."""
    part = found.limited_by
    return {
        "schema": 1,
        "bandwidth_gbps": round(found.limits[part] / 1e9, 3),
        "limited_by": part,
        "limits_gbps": {name: round(bps / 1e9, 3) for name, bps in found.limits.items() if bps != float("inf")},
        "one_way_us": round(found.one_way_ps / 1e6, 3),
        "one_way_polling_us": round(found.polled_ps / 1e6, 3),
        "requests_per_s": round(PS_PER_S / (2 * found.one_way_ps), 1),
    }


def as_text(found: SocketFigures) -> str:
    """Return it for a terminal."""
    test, part = found.test, found.limited_by
    stack, streams = test.stack, test.streams
    lines = [
        f"TCP between two {test.host}: {test.network}, {format_rate(test.rate_bps)}, MTU "
        f"{stack.wire.mtu_bytes}, {test.path}",
        f"streams {streams.count}, threads at each end {streams.threads}, writes "
        f"{format_size(streams.write_bytes)}",
        "",
        f"bandwidth     {format_rate(round(found.limits[part]))}, set by the {part}",
    ]
    lines += [
        f"  {name:10}  {format_rate(round(bps))}" for name, bps in found.limits.items() if bps != float("inf")
    ]
    lines += [
        "",
        f"one way       {format_time(found.one_way_ps)} for {format_size(test.request_bytes)}; "
        f"{format_time(found.polled_ps)} where the reader polls",
        f"requests      {PS_PER_S / (2 * found.one_way_ps):,.0f} a second there and back",
    ]
    return "\n".join(lines) + "\n"
