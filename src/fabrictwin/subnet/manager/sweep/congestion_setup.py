"""Congestion control set by a manager: the same settings in all switches and in all adapters, as OpenSM sets them.

Datagrams of the congestion class go by LID, so ports have to be active. What a node holds is not sent again.
"""

from __future__ import annotations

from fabrictwin.cluster.spec.congestion_section import LEVELS, CongestionControl
from fabrictwin.subnet.manager.mad_transport import Transport
from fabrictwin.subnet.manager.sweep.discovery import Kind, Port, Subnet
from fabrictwin.subnet.manager.sweep.table_computation import port_guid
from fabrictwin.subnet.wire import congestion as cc
from fabrictwin.subnet.wire.fields import Attribute
from fabrictwin.subnet.wire.header import START, MadClass, Method

_MAD_BYTES = 256
_DATA_BYTES = 192


def switch_records(section: CongestionControl) -> list[tuple[int, Attribute]]:
    """(block, attribute) of a switch."""
    shift, multiplier = section.cc_sw_cong_setting_credit_starvation_return_delay
    return [
        (
            0,
            cc.SwitchCongestionSetting(
                control_map=section.cc_sw_cong_setting_control_map,
                victim_mask=section.cc_sw_cong_setting_victim_mask.to_bytes(32, "big"),
                credit_mask=section.cc_sw_cong_setting_credit_mask.to_bytes(32, "big"),
                threshold=section.cc_sw_cong_setting_threshold,
                packet_size=section.cc_sw_cong_setting_packet_size,
                cs_threshold=section.cc_sw_cong_setting_credit_starvation_threshold,
                cs_return_delay=shift << 14 | multiplier,
                marking_rate=section.cc_sw_cong_setting_marking_rate,
            ),
        )
    ]


def adapter_records(section: CongestionControl) -> list[tuple[int, Attribute]]:
    """(block, attribute) of an adapter; the table first, which the indices point into."""
    table = section.cc_cct or ((0, 0),)
    found: list[tuple[int, Attribute]] = []
    for block in range(-(-len(table) // cc.ENTRIES_A_BLOCK)):
        part = table[block * cc.ENTRIES_A_BLOCK : (block + 1) * cc.ENTRIES_A_BLOCK]
        rest = (0,) * (cc.ENTRIES_A_BLOCK - len(part))
        found.append(
            (
                block,
                cc.CongestionControlTable(
                    ccti_limit=len(table) - 1,
                    shift=(*(shift for shift, _ in part), *rest),
                    multiplier=(*(multiplier for _, multiplier in part), *rest),
                ),
            )
        )

    def by_level(values: dict[int, int]) -> tuple[int, ...]:
        return tuple(values.get(sl, 0) for sl in range(LEVELS))

    levels = cc.CaCongestionSetting(
        port_control=section.cc_ca_cong_setting_port_control,
        control_map=section.cc_ca_cong_setting_control_map,
        ccti_timer=by_level(section.cc_ca_cong_setting_ccti_timer),
        ccti_increase=by_level(section.cc_ca_cong_setting_ccti_increase),
        trigger_threshold=by_level(section.cc_ca_cong_setting_trigger_threshold),
        ccti_min=by_level(section.cc_ca_cong_setting_ccti_min),
    )
    return [*found, (0, levels)]


class CongestionSetup:
    """Sets what differs, and remembers what nodes hold."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._held: dict[int, CongestionControl] = {}  # by port GUID

    def forget(self, guid: int) -> None:
        """A port has lost what it held."""
        self._held.pop(guid, None)

    def run(self, subnet: Subnet, lid: dict[int, int], section: CongestionControl) -> None:
        """Set up every end port that does not hold these settings; who does not take them is a finding."""
        for node in subnet.nodes.values():
            records = switch_records(section) if node.is_switch else adapter_records(section)
            for port in node.ends():
                guid = port_guid(port)
                if self._held.get(guid) == section or not lid.get(guid):
                    continue
                taken = [self._set(subnet, port, lid[guid], block, each, section) for block, each in records]
                if all(taken):
                    self._held[guid] = section

    def _set(
        self, subnet: Subnet, port: Port, dlid: int, block: int, record: Attribute, section: CongestionControl
    ) -> bool:
        head = START.pack(1, MadClass.CONGESTION, 2, Method.SET, 0, 0, 0, record.ID, block, section.cc_key)
        mad = head.ljust(_MAD_BYTES - _DATA_BYTES, b"\0") + record.encode().ljust(_DATA_BYTES, b"\0")
        answer = self.transport.ask(dlid, mad)
        if answer is None:
            subnet.find(Kind.SILENT, str(port), f"no answer when {type(record).__name__} was set")
            return False
        if status := int.from_bytes(answer[4:6], "big"):
            subnet.find(Kind.REFUSED, str(port), f"{type(record).__name__}: status 0x{status:04x}")
        return not status
