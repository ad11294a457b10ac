"""The congestion control agent in every node (IBTA volume 1, annex A10): settings, kept and read back.

Switches and adapters keep what a manager sets, by port where they have several; `subnet.operation.tables_in_force`
reads it for the packet engine, which acts on it and tells what to log. From the first datagram with a wrong CC_Key
the lease period runs, as with an M_Key; a protected node answers no Get either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.routing.congestion_tables import CREDIT, RATE, STARVATION, THRESHOLD, VICTIM
from fabrictwin.subnet.agents.congestion_port import CongestionEvent, CongestionPort
from fabrictwin.subnet.agents.port_states import PortStates
from fabrictwin.subnet.wire import congestion as cc
from fabrictwin.subnet.wire.congestion import CongestionId
from fabrictwin.subnet.wire.fields import Attribute, MadError
from fabrictwin.subnet.wire.header import START, Method, Status
from fabrictwin.subnet.wire.pm import ClassPortInfo

CONTROL_TABLE_BLOCKS = 2  # 128 entries; an estimate
RESPONSE_TIME = 16
_SWITCH = {
    CongestionId.SWITCH_CONGESTION_SETTING: cc.SwitchCongestionSetting,
    CongestionId.SWITCH_PORT_CONGESTION_SETTING: cc.SwitchPortCongestionSetting,
}
_ADAPTER = {
    CongestionId.CA_CONGESTION_SETTING: cc.CaCongestionSetting,
    CongestionId.CONGESTION_CONTROL_TABLE: cc.CongestionControlTable,
}


@record
class _Request:
    method: int
    attribute: int
    block: int
    key: int
    data: bytes
    now_ps: int


@record
class CongestionAgent:
    """All congestion control agents of a fabric."""

    state: PortStates

    def answer(self, m: int, slot: int, mad: bytes, now_ps: int) -> bytes | None:
        """Return the answer of node `m` to a request for its slot; None where the key forbids one."""
        start = START.unpack_from(mad)
        place = cc.LOG_DATA if start[7] == CongestionId.CONGESTION_LOG else cc.DATA
        request = _Request(mad[3], start[7], start[8], int.from_bytes(mad[24:32], "big"), mad[place], now_ps)
        port = self.state.congestion_ports.setdefault(slot, CongestionPort())
        status, data = int(Status.OK), b""
        if request.method not in (Method.GET, Method.SET):
            status = Status.BAD_METHOD
        elif not self._may(port, request):
            return None
        else:
            try:
                found = self._handle(m, port, request)
            except MadError:
                status = Status.BAD_FIELD
            else:
                status, data = (Status.OK, found.encode()) if found else (Status.BAD_ATTRIBUTE, b"")
        body = data.ljust(place.stop - place.start, b"\0") if data else request.data
        return b"".join((mad[:3], b"\x81", int(status).to_bytes(2, "big"), mad[6 : place.start], body))

    @staticmethod
    def _may(port: CongestionPort, request: _Request) -> bool:
        """Return whether a request is answered; a wrong key is counted, and the lease runs."""
        now_ps = request.now_ps
        if port.lease_ends_ps is not None and now_ps >= port.lease_ends_ps:
            port.key.protect_bit, port.lease_ends_ps = 0, None
        if request.key == port.key.cc_key or not port.key.cc_key:
            port.lease_ends_ps = None
            return True
        if request.method == Method.GET and not port.key.protect_bit:
            return True
        port.key.violations = min(port.key.violations + 1, 0xFFFF)
        if port.key.lease_period_s and port.lease_ends_ps is None:
            port.lease_ends_ps = now_ps + port.key.lease_period_s * PS_PER_S
        return False

    def _handle(self, m: int, port: CongestionPort, request: _Request) -> Attribute | None:
        """The attribute as it is now, after a Set; None where a node of this kind has none, or it cannot be set.

        Raises MadError for a block or a value that there is not.
        """
        attribute, block = request.attribute, request.block
        switch, setting = self.state.is_switch[m], request.method == Method.SET
        kind: type[Attribute] | None = (_SWITCH if switch else _ADAPTER).get(attribute)  # type: ignore[call-overload]
        if kind is not None:
            if setting:
                self._check(m, attribute, block, request.data)
                port.settings[attribute, block] = held = kind.decode(request.data)
                if isinstance(held, cc.SwitchCongestionSetting):
                    port.in_force = _merged(port.in_force, held)
                self.state.notify_congestion(request.now_ps)
            elif block >= self._blocks(m, attribute):
                raise MadError("no such block")
            return port.settings.get((attribute, block)) or self._as_built(kind, port)
        if attribute == CongestionId.CONGESTION_KEY_INFO:
            if setting:
                port.key = replace(cc.CongestionKeyInfo.decode(request.data), violations=0)
            hidden = port.key.cc_key not in (0, request.key) and not setting
            return replace(port.key, cc_key=0) if hidden else port.key
        stamp = request.now_ps // cc.TICK_PS & 0xFFFFFFFF
        if attribute == CongestionId.CONGESTION_LOG:  # a Set clears it
            log = switch_log(port) if switch else adapter_log(port)
            if setting:
                port.events, port.counted = [], 0
                log = switch_log(port) if switch else adapter_log(port)
            log.current_timestamp = stamp
            return log
        if setting:
            return None
        if attribute == CongestionId.CLASS_PORT_INFO:
            return ClassPortInfo(class_version=2, resp_time_value=RESPONSE_TIME)
        if attribute == CongestionId.CONGESTION_INFO:
            return cc.CongestionInfo(control_table_cap=0 if switch else CONTROL_TABLE_BLOCKS)
        return cc.Timestamp(timestamp=stamp) if attribute == CongestionId.TIMESTAMP else None

    @staticmethod
    def _as_built(kind: type[Attribute], port: CongestionPort) -> Attribute:
        """A block that was never set: the limit of a control table is that of its first block."""
        first = port.settings.get((CongestionId.CONGESTION_CONTROL_TABLE, 0))
        if kind is cc.CongestionControlTable and isinstance(first, cc.CongestionControlTable):
            return cc.CongestionControlTable(ccti_limit=first.ccti_limit)
        return kind()

    def _blocks(self, m: int, attribute: int) -> int:
        if attribute == CongestionId.SWITCH_PORT_CONGESTION_SETTING:
            return self.state.ports[m] // cc.PORTS_A_BLOCK + 1
        return CONTROL_TABLE_BLOCKS if attribute == CongestionId.CONGESTION_CONTROL_TABLE else 1

    def _check(self, m: int, attribute: int, block: int, data: bytes) -> None:
        """Raise MadError for a block that there is not, or a limit beyond the table."""
        if block >= self._blocks(m, attribute):
            raise MadError("no such block")
        if attribute == CongestionId.CONGESTION_CONTROL_TABLE:
            limit = cc.CongestionControlTable.decode(data).ccti_limit
            if limit >= CONTROL_TABLE_BLOCKS * cc.ENTRIES_A_BLOCK:
                raise MadError(f"got a limit of {limit}, beyond the table")


def _merged(before: cc.SwitchCongestionSetting, given: cc.SwitchCongestionSetting) -> cc.SwitchCongestionSetting:
    """Return a switch's settings after a Set: its control map says which parts of it count."""
    parts = {
        VICTIM: ("victim_mask",),
        CREDIT: ("credit_mask",),
        THRESHOLD: ("threshold", "packet_size"),
        STARVATION: ("cs_threshold", "cs_return_delay"),
        RATE: ("marking_rate",),
    }
    names = [name for bit, each in parts.items() if given.control_map & bit for name in each]
    return replace(before, **{name: getattr(given, name) for name in names})


def switch_log(port: CongestionPort) -> cc.CongestionLogSwitch:
    """Return a switch's log: ports that became congested, and the latest events."""

    def entry(event: CongestionEvent) -> cc.SwitchEvent:
        return cc.SwitchEvent(slid=event.source_lid, dlid=event.destination_lid, sl=event.level)

    ports = sum(1 << number for number in {event.port for event in port.events})
    return cc.CongestionLogSwitch(
        log_events_counter=port.counted,
        port_map=ports.to_bytes(32, "big"),
        entries=_latest(port, entry, size=180),
    )


def adapter_log(port: CongestionPort) -> cc.CongestionLogCa:
    """Return an adapter's log: service levels whose index reached the threshold, and the latest events."""

    def entry(event: CongestionEvent) -> cc.AdapterEvent:
        qp, service, lid = event.queue_pair, event.service, event.destination_lid
        return cc.AdapterEvent(local_qp=qp, sl=event.level, service_type=service, remote_lid=lid)

    levels = sum(1 << level for level in {event.level for event in port.events})
    return cc.CongestionLogCa(
        threshold_event_counter=port.counted,
        threshold_congestion_event_map=levels,
        entries=_latest(port, entry, size=208),
    )


def _latest(
    port: CongestionPort, entry: Callable[[CongestionEvent], cc.SwitchEvent | cc.AdapterEvent], *, size: int
) -> bytes:
    """Return as many entries of a log as its `size` in bytes holds, the latest first."""
    written = b""
    for event in reversed(port.events):
        one = entry(event)
        one.timestamp = event.time_ps // cc.TICK_PS & 0xFFFFFFFF
        if len(written) + one.SIZE > size:
            break
        written += one.encode()
    return written.ljust(size, b"\0")
