"""The performance management agent in every node (IBTA volume 1, 16.1), and counters from a simulated run.

PortXmitData counts 4-byte words from the header to before the VCRC. The counters of PortCounters saturate; those
of PortCountersExtended wrap at 64 bits, which no run reaches. PortXmitWait counts ticks of the link's 4-byte
words in which a port had something to send and could not.

What the engine's fidelity does not model (waits, drops) stays at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I64
from fabrictwin.fabric.fabric import NONE
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.routing.congestion_tables import CongestionCounts
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.port_states import COUNTERS, LANE_COUNTERS, LANES
from fabrictwin.subnet.wire import pm as perf
from fabrictwin.subnet.wire.fields import Attribute, Field, MadError
from fabrictwin.subnet.wire.header import PERF_DATA, START, Method, Status
from fabrictwin.subnet.wire.notice import Trap
from fabrictwin.subnet.wire.smp import PortInfo
from fabrictwin.trace.trace import Counters

RESPONSE_TIME = 16
_LOCAL_ERRORS = Field(PortInfo, "local_phy_errors")

# bits of CounterSelect (16.1.3.5), of CounterSelect2, of the extended attribute's CounterSelect; bits follow
# the order of each table
_NO_BIT = {"port_select", "counter_select", "counter_select2", "qp1_dropped", "xmit_wait"}
_SELECT = tuple(name for name in perf.PortCounters.names() if name not in _NO_BIT)
_SELECT2 = ("xmit_wait",)
_EXTENDED_SELECT = (
    ("xmit_data",),
    ("rcv_data",),
    ("xmit_packets",),
    ("rcv_packets",),
    ("xmit_packets", "multicast_xmit_packets"),  # unicast packets are what is left
    ("rcv_packets", "multicast_rcv_packets"),
    ("multicast_xmit_packets",),
    ("multicast_rcv_packets",),
)
_EXTENDED_SELECT2 = COUNTERS[COUNTERS.index("symbol_errors") :]
# counters of congestion control by attribute; of some each level or lane has a bit of CounterSelect
_LANE_COUNTERS: dict[int, tuple[str, ...]] = {
    perf.PerfId.RCV_CONGESTION_CONTROL: ("fecns", "becns"),
    perf.PerfId.SL_RCV_FECN: ("fecns",),
    perf.PerfId.SL_RCV_BECN: ("becns",),
    perf.PerfId.XMIT_CONGESTION_CONTROL: ("congested_ticks",),
    perf.PerfId.VL_XMIT_TIME_CONGESTED: ("congested_ticks",),
}
_EACH_LANE = {perf.PerfId.SL_RCV_FECN, perf.PerfId.SL_RCV_BECN, perf.PerfId.VL_XMIT_TIME_CONGESTED}


class PerformanceAgent:
    """All performance management agents of a fabric."""

    def __init__(self, state: SubnetState) -> None:
        self.state = state
        self._get: dict[int, Callable[[int, int], Attribute]] = {
            perf.PerfId.PORT_COUNTERS: self._port_counters,
            perf.PerfId.PORT_COUNTERS_EXTENDED: self._extended,
            perf.PerfId.RCV_ERROR_DETAILS: self._rcv_errors,
            perf.PerfId.XMIT_DISCARD_DETAILS: self._discards,
            perf.PerfId.OP_RCV_COUNTERS: lambda m, p: perf.OpRcvCounters(port_select=p),
            perf.PerfId.FLOW_CONTROL_COUNTERS: lambda m, p: perf.FlowControlCounters(port_select=p),
            perf.PerfId.VL_OP_PACKETS: self._vl_packets,
            perf.PerfId.VL_OP_DATA: self._vl_data,
            perf.PerfId.VL_XMIT_FLOW_CONTROL_ERRORS: lambda m, p: perf.VlXmitFlowControlErrors(port_select=p),
            perf.PerfId.VL_XMIT_WAIT: self._vl_wait,
            perf.PerfId.RCV_CONGESTION_CONTROL: self._rcv_congestion,
            perf.PerfId.SL_RCV_FECN: lambda m, p: perf.SlRcvFecn(
                port_select=p, packets=self._by_lane("fecns", m, p)
            ),
            perf.PerfId.SL_RCV_BECN: lambda m, p: perf.SlRcvBecn(
                port_select=p, packets=self._by_lane("becns", m, p)
            ),
            perf.PerfId.XMIT_CONGESTION_CONTROL: self._xmit_congestion,
            perf.PerfId.VL_XMIT_TIME_CONGESTED: self._lanes_congested,
        }

    def answer(self, m: int, mad: bytes) -> bytes | None:
        """Return the answer of node `m` to a request."""
        method, attribute = mad[3], START.unpack_from(mad)[7]
        data, status = mad[PERF_DATA], int(Status.OK)
        if method not in (Method.GET, Method.SET):
            status = Status.BAD_METHOD
        elif attribute == perf.PerfId.CLASS_PORT_INFO and method == Method.GET:
            data = self._class_port_info(m).encode().ljust(192, b"\0")
        elif attribute not in self._get:
            status = Status.BAD_ATTRIBUTE
        elif not self._exists(m, data[1]):
            status = Status.BAD_FIELD
        else:
            try:
                if method == Method.SET:
                    self._clear(m, attribute, data)
                data = self._get[attribute](m, data[1]).encode().ljust(192, b"\0")
            except MadError:
                status = Status.BAD_FIELD
        return b"".join((mad[:3], b"\x81", int(status).to_bytes(2, "big"), mad[6:64], data))

    def _exists(self, m: int, port: int) -> bool:
        if port == perf.ALL_PORTS:
            return True
        return (0 if self.state.is_switch[m] else 1) <= port <= self.state.ports[m]

    def _class_port_info(self, m: int) -> perf.ClassPortInfo:
        mask = perf.PerfCapability.EXTENDED_WIDTH | perf.PerfCapability.XMIT_WAIT
        mask |= perf.PerfCapability.ALL_PORT_SELECT
        return perf.ClassPortInfo(capability_mask=mask, resp_time_value=RESPONSE_TIME)

    def _slots(self, m: int, port: int) -> slice:
        base = self.state.base[m]
        if port == perf.ALL_PORTS:
            return slice(base + (0 if self.state.is_switch[m] else 1), base + self.state.ports[m] + 1)
        return slice(base + port, base + port + 1)

    def _sum(self, name: str, m: int, port: int) -> int:
        return int(self.state.counters[name][self._slots(m, port)].sum())

    def _saturated(self, kind: type[Attribute], m: int, port: int, names: tuple[str, ...]) -> dict[str, int]:
        return {name: min(self._sum(name, m, port), (1 << kind.place(name).width) - 1) for name in names}

    def _port_counters(self, m: int, port: int) -> Attribute:
        names = (*_SELECT, *_SELECT2, "qp1_dropped")
        return perf.PortCounters(port_select=port, **self._saturated(perf.PortCounters, m, port, names))

    def _extended(self, m: int, port: int) -> Attribute:
        values: dict[str, Any] = {name: self._sum(name, m, port) for name in COUNTERS}
        return perf.PortCountersExtended(
            port_select=port,
            # either may have been cleared alone
            unicast_xmit_packets=max(values["xmit_packets"] - values["multicast_xmit_packets"], 0),
            unicast_rcv_packets=max(values["rcv_packets"] - values["multicast_rcv_packets"], 0),
            **values,
        )

    def _rcv_errors(self, m: int, port: int) -> Attribute:
        # the twin's wires have one way to err, which is physical
        errors = min(self._sum("rcv_errors", m, port), 0xFFFF)
        return perf.RcvErrorDetails(port_select=port, local_physical_errors=errors)

    def _discards(self, m: int, port: int) -> Attribute:
        discards = min(self._sum("xmit_discards", m, port), 0xFFFF)
        return perf.XmitDiscardDetails(port_select=port, inactive_discards=discards)

    def _vl_packets(self, m: int, port: int) -> Attribute:
        packets = min(self._sum("xmit_packets", m, port), 0xFFFF)
        return perf.VlOpPackets(port_select=port, packets=(packets, *[0] * 15))

    def _vl_data(self, m: int, port: int) -> Attribute:
        words = min(self._sum("xmit_data", m, port), 0xFFFFFFFF)
        return perf.VlOpData(port_select=port, data=(words, *[0] * 15))

    def _vl_wait(self, m: int, port: int) -> Attribute:
        ticks = min(self._sum("xmit_wait", m, port), 0xFFFF)
        return perf.VlXmitWait(port_select=port, ticks=(ticks, *[0] * 15))

    def _by_lane(self, name: str, m: int, port: int) -> tuple[int, ...]:
        """A counter of 32 bits for each service level or lane."""
        held = self.state.lane_counters.get(name)
        if held is None:
            return (0,) * LANES
        return tuple(min(count, 0xFFFFFFFF) for count in held[self._slots(m, port)].sum(axis=0).tolist())

    def _rcv_congestion(self, m: int, port: int) -> Attribute:
        fecns, becns = (min(sum(self._by_lane(name, m, port)), 0xFFFFFFFF) for name in ("fecns", "becns"))
        return perf.RcvCongestionControl(port_select=port, fecns=fecns, becns=becns)

    def _xmit_congestion(self, m: int, port: int) -> Attribute:
        ticks = min(sum(self._by_lane("congested_ticks", m, port)), 0xFFFFFFFF)
        return perf.XmitCongestionControl(port_select=port, ticks=ticks)

    def _lanes_congested(self, m: int, port: int) -> Attribute:
        return perf.VlXmitTimeCongested(port_select=port, ticks=self._by_lane("congested_ticks", m, port)[:15])

    def _clear_lanes(self, m: int, attribute: int, data: bytes) -> None:
        """A Set of a congestion control attribute writes zero into the counters whose bit it has."""
        select = int.from_bytes(data[2:4], "big")
        for bit, name in enumerate(_LANE_COUNTERS[attribute]):
            held = self.state.lane_counters.get(name)
            if held is None:
                continue
            if attribute in _EACH_LANE:
                chosen = [lane for lane in range(LANES) if select >> lane & 1]
                held[self._slots(m, data[1]), chosen] = 0
            elif select >> bit & 1:
                held[self._slots(m, data[1])] = 0

    def _clear(self, m: int, attribute: int, data: bytes) -> None:
        """A Set writes zero into the counters that it selects."""
        names: list[str] = []
        if attribute in _LANE_COUNTERS:
            self._clear_lanes(m, attribute, data)
        elif attribute == perf.PerfId.PORT_COUNTERS:
            asked = perf.PortCounters.decode(data)
            names += [name for bit, name in enumerate(_SELECT) if asked.counter_select >> bit & 1]
            names += [name for bit, name in enumerate(_SELECT2) if asked.counter_select2 >> bit & 1]
        elif attribute == perf.PerfId.PORT_COUNTERS_EXTENDED:
            extended = perf.PortCountersExtended.decode(data)
            for bit, group in enumerate(_EXTENDED_SELECT):
                names += group if extended.counter_select >> bit & 1 else ()
            names += [n for bit, n in enumerate(_EXTENDED_SELECT2) if extended.counter_select2 >> bit & 1]
        for name in names:
            self.state.counters[name][self._slots(m, data[1])] = 0


# what an engine that moves packets counts by these names, and the agents' column for each
_COUNTED = {
    "PortXmitData": "xmit_data",
    "PortXmitPkts": "xmit_packets",
    "PortRcvData": "rcv_data",
    "PortRcvPkts": "rcv_packets",
    "PortXmitDiscards": "xmit_discards",
    "PortRcvErrors": "rcv_errors",
}


class EngineCounters:
    """Carries what an engine's ports counted over into the agents' counters, as often as asked."""

    def __init__(self, state: SubnetState) -> None:
        self.state = state
        self._before = Counters(np.zeros(state.fabric.ports, np.int64))
        self._exact: Mapping[str, I64] = {}
        self._lanes: CongestionCounts | None = None

    def load(self, counters: Counters, exact: Mapping[str, I64] | None = None, *, now_ps: int = 0) -> None:
        """Add what was counted since the last call. `exact` are counters of single packets, where there are any.

        Without them packets are taken to be full, with the headers of all but a message's first.
        """
        state = self.state
        slots = np.flatnonzero(state.fabric_port != NONE)
        ports = state.fabric_port[slots]
        if exact is None:
            self._estimate((counters.tx_bytes - self._before.tx_bytes)[ports], slots)
        else:
            for name, column in _COUNTED.items():
                before = self._exact.get(name)
                state.counters[column][slots] += (exact[name] - (0 if before is None else before))[ports]
            self._judge_links(exact["PortRcvErrors"], now_ps)
            self._exact = {name: exact[name].copy() for name in _COUNTED}
        if counters.wait_ps is not None:
            waited = (counters.wait_ps - _or_zero(self._before.wait_ps))[ports]
            # a tick is the time of one 4-byte word
            tick_ps = 32 * PS_PER_S / np.maximum(state.fabric.port_rate_bps[ports], 1)
            state.counters["xmit_wait"][slots] += np.rint(waited / tick_ps).astype(np.int64)
        if counters.drops is not None and exact is None:
            state.counters["xmit_discards"][slots] += (counters.drops - _or_zero(self._before.drops))[ports]
        self._before = replace(
            counters,
            tx_bytes=counters.tx_bytes.copy(),
            wait_ps=None if counters.wait_ps is None else counters.wait_ps.copy(),
            drops=None if counters.drops is None else counters.drops.copy(),
        )

    def load_congestion(self, counts: CongestionCounts | None) -> None:
        """Add what congestion control counted since the last call."""
        if counts is None:
            return
        state, before = self.state, self._lanes
        slots = np.flatnonzero(state.fabric_port != NONE)
        ports = state.fabric_port[slots]
        tick_ps = 32 * PS_PER_S / np.maximum(state.fabric.port_rate_bps[ports], 1)
        for name, column in zip(LANE_COUNTERS, ("fecns", "becns", "congested_ps"), strict=True):
            held = getattr(counts, column)
            more = (held if before is None else held - getattr(before, column))[ports]
            if column == "congested_ps":
                more = np.rint(more / tick_ps[:, None]).astype(np.int64)
            if more.any():
                state.lane_counter(name)[slots] += more
        self._lanes = counts

    def _judge_links(self, errors: I64, now_ps: int) -> None:
        """Each time that errors of a link exceed what LocalPhyErrors allows, its integrity is in doubt: 129."""
        state = self.state
        before = self._exact.get("PortRcvErrors", np.zeros_like(errors))
        for slot in np.flatnonzero((state.fabric_port != NONE) & (errors > before)[state.fabric_port]).tolist():
            port = int(state.fabric_port[slot])
            state.counters["symbol_errors"][slot] += errors[port] - before[port]
            allowed = _LOCAL_ERRORS.get(state.info, 64 * slot) + 1
            times = int(errors[port] // allowed - before[port] // allowed)
            if times:
                state.counters["local_link_integrity_errors"][slot] += times
                state.notices.raise_trap(state.node_of[slot], Trap.LINK_INTEGRITY, now_ps, port=state.number[slot])

    def _estimate(self, payload: I64, slots: I64) -> None:
        """Words and packets of so much payload, at both ends of the links."""
        state = self.state
        packets = -(-payload // state.fabric.mtu_bytes)
        headers = catalog.headers("infiniband").bytes_of("LRH", "BTH", "ICRC")
        words = -(-(payload + packets * headers) // 4)
        far = np.array(state.cable, np.int64)[slots]
        there = far != NONE
        for sent, received, count in (
            ("xmit_data", "rcv_data", words),
            ("xmit_packets", "rcv_packets", packets),
        ):
            state.counters[sent][slots] += count
            state.counters[received][far[there]] += count[there]


def _or_zero(counter: I64 | None) -> I64:
    return np.zeros(1, np.int64) if counter is None else counter
