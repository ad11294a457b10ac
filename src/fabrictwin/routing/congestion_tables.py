"""InfiniBand congestion control as ports hold it (InfiniBand Architecture volume 1, annex A10).

Switch ports mark, adapters slow down. Ports hold the same few settings again and again, so each is kept once and
ports name it by its row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.congestion_section import LEVELS, SWITCH_PARTS, CongestionControl, Delay
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind

VICTIM, CREDIT, THRESHOLD, STARVATION, RATE = 1, 2, 4, 8, 16  # bits of the switches' control map


@record
class PortMarking:
    """What a switch port does: marks with FECN, and holds back credits of what comes in by it."""

    threshold: int = 0  # 0 marks nothing, 1 (late) to 15 (early)
    packet_size: int = 0  # smaller packets are not marked; blocks of 64 bytes
    marking_rate: int = 0  # packets between two marks
    victim: bool = False  # marks although it lacks credits itself
    starvation: int = 0  # threshold of credit starvation; 0: it has none
    return_delay: Delay = (0, 0)


@record
class LevelControl:
    """What an adapter does about a service level."""

    timer: int = 0  # units of 1.024 us; 0: the index never falls
    increase: int = 0
    trigger: int = 0
    minimum: int = 0


@record
class AdapterControl:
    """What an adapter does about notifications."""

    levels: tuple[LevelControl | None, ...]  # [16] None: the level has no control
    table: tuple[Delay, ...]  # by index: how much longer than itself a packet delays the next
    limit: int
    by_level: bool = False  # an index a service level, not a queue pair


@record
class CongestionTables:
    """Settings of P ports and E adapters."""

    markings: tuple[PortMarking, ...]
    marking_row: I32  # [P] NONE: the port marks nothing
    controls: tuple[AdapterControl, ...]
    control_row: I32  # [E] NONE: the adapter slows down for nobody

    @classmethod
    def of(
        cls, fabric: Fabric, markings: Mapping[int, PortMarking], controls: Mapping[int, AdapterControl]
    ) -> CongestionTables:
        """Return tables from settings by port and by adapter."""
        rows = np.full(fabric.ports, NONE, np.int32)
        adapters = np.full(len(fabric.nic_node), NONE, np.int32)
        first, second = tuple(dict.fromkeys(markings.values())), tuple(dict.fromkeys(controls.values()))
        place = {one: i for i, one in enumerate(first)}
        for port, one in markings.items():
            rows[port] = place[one]
        at = {one: i for i, one in enumerate(second)}
        for adapter, control in controls.items():
            adapters[adapter] = at[control]
        return cls(first, rows, second, adapters)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CongestionTables)
            and (self.markings, self.controls) == (other.markings, other.controls)
            and np.array_equal(self.marking_row, other.marking_row)
            and np.array_equal(self.control_row, other.control_row)
        )

    __hash__ = None  # type: ignore[assignment]


@record
class CongestionLog:
    """Events of congestion control, in order: columns of the same length, NONE where one has no part."""

    time_ps: I64
    node: I64  # a switch whose lane became congested, or an adapter of which an index reached its trigger
    port: I64  # of the switch
    queue_pair: I64  # of the adapter
    source: I64  # adapters that the packet, or the queue pair, was from and to
    destination: I64
    level: I64


@record
class CongestionCounts:
    """Counters of congestion control so far, of shape [ports, 16] each."""

    fecns: I64  # packets received with FECN, by service level
    becns: I64
    congested_ps: I64  # by virtual lane


def marking_of(section: CongestionControl, number: int) -> PortMarking:
    """Return what port `number` of a switch does by an opensm.conf."""
    parts = section.cc_sw_cong_setting_control_map & SWITCH_PARTS
    marks = parts & THRESHOLD
    starves = parts & STARVATION and parts & CREDIT and section.cc_sw_cong_setting_credit_mask >> number & 1
    return PortMarking(
        threshold=section.cc_sw_cong_setting_threshold if marks else 0,
        packet_size=section.cc_sw_cong_setting_packet_size if marks else 0,
        marking_rate=section.cc_sw_cong_setting_marking_rate if parts & RATE else 0,
        victim=bool(parts & VICTIM and section.cc_sw_cong_setting_victim_mask >> number & 1),
        starvation=section.cc_sw_cong_setting_credit_starvation_threshold if starves else 0,
        return_delay=section.cc_sw_cong_setting_credit_starvation_return_delay if starves else (0, 0),
    )


def control_of(section: CongestionControl) -> AdapterControl:
    """Return what every adapter does by an opensm.conf; an empty table delays nothing."""
    table = section.cc_cct or ((0, 0),)

    def level(sl: int) -> LevelControl | None:
        if not section.cc_ca_cong_setting_control_map >> sl & 1:
            return None
        return LevelControl(
            section.cc_ca_cong_setting_ccti_timer.get(sl, 0),
            section.cc_ca_cong_setting_ccti_increase.get(sl, 0),
            section.cc_ca_cong_setting_trigger_threshold.get(sl, 0),
            section.cc_ca_cong_setting_ccti_min.get(sl, 0),
        )

    return AdapterControl(
        levels=tuple(level(sl) for sl in range(LEVELS)),
        table=table,
        limit=len(table) - 1,
        by_level=bool(section.cc_ca_cong_setting_port_control & 1),
    )


def tables_of(fabric: Fabric, section: CongestionControl) -> CongestionTables:
    """Return the tables of a fabric whose switches and adapters are all set alike."""
    network = np.isin(fabric.port_kind, NETWORK) & (fabric.port_peer != NONE)
    of_switch = fabric.node_kind[fabric.port_node] == NodeKind.SWITCH
    ports = np.flatnonzero(network & of_switch)
    marking = {int(port): marking_of(section, int(fabric.port_number[port])) for port in ports}
    control = control_of(section)
    return CongestionTables.of(fabric, marking, dict.fromkeys(range(len(fabric.nic_node)), control))
