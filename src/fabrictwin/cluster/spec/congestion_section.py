"""The `network.congestion_control` section of a spec: InfiniBand's congestion control, under OpenSM's names.

The keys are those of opensm.conf (OpenSM 3.3.23), one set for all switches and one for all adapters. A map that is
left out covers what there is: in opensm.conf, where every key stands, 0 turns a part off.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from fabrictwin.base.errors import quoted
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.cluster.spec.model_base import Model

LEVELS = 16
TABLE_ENTRIES = 128
MOST_MULTIPLIER = (1 << 14) - 1
SWITCH_PARTS = 0x1F  # bits of the switches' control map

Delay = tuple[int, int]  # shift, multiplier


def _mask(bits: int) -> BeforeValidator:
    """Read a mask that may be written as text, in any base."""

    def read(value: object) -> object:
        if isinstance(value, str):
            number = whole_or_none(value.strip(), most=2**bits - 1, base=0)
            if number is None:
                raise ValueError(f"got {quoted(value)}, expected a mask of {bits} bits, such as '0x1e'")
            return number
        return value

    return BeforeValidator(read, json_schema_input_type=int | str)


def _delay(text: str) -> Delay:
    match = re.fullmatch(r"\s*(\d{1,3})\s*:\s*(\d{1,6})\s*", text)
    if match is None or int(match[1]) > 3 or int(match[2]) > MOST_MULTIPLIER:
        raise ValueError(f"got {quoted(text)}, expected SHIFT:MULTIPLIER, at most 3:{MOST_MULTIPLIER}")
    return int(match[1]), int(match[2])


def _delay_text(value: Delay) -> str:
    return f"{value[0]}:{value[1]}"


def _one_delay(value: object) -> object:
    return _delay(value) if isinstance(value, str) else value


def _delays(value: object) -> object:
    if not isinstance(value, str):
        return value
    entries = value.split(",")
    if len(entries) > TABLE_ENTRIES:
        raise ValueError(f"got {len(entries)} entries, expected at most {TABLE_ENTRIES}")
    return tuple(_delay(entry) for entry in entries)


def _by_level(most: int) -> BeforeValidator:
    """Read a number for all service levels, or numbers by level."""

    def read(value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            value = dict.fromkeys(range(LEVELS), value)
        if not isinstance(value, dict):
            raise ValueError(f"got {quoted(str(value))}, expected a number, or numbers by service level")
        found: dict[int, int] = {}
        for key, number in value.items():
            level = whole_or_none(str(key), most=LEVELS - 1)
            if level is None:
                raise ValueError(f"got service level {quoted(str(key))}, expected 0 to {LEVELS - 1}")
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
                raise ValueError(f"got {quoted(str(number))} for service level {level}, expected 0 to {most}")
            found[level] = number
        return found

    return BeforeValidator(read, json_schema_input_type=int | dict[str, int])


_HEX = PlainSerializer(hex, return_type=str)
Mask16 = Annotated[int, _mask(16), Field(strict=True, ge=0, lt=1 << 16), _HEX]
Mask32 = Annotated[int, _mask(32), Field(strict=True, ge=0, lt=1 << 32), _HEX]
Number64 = Annotated[int, _mask(64), Field(strict=True, ge=0, lt=1 << 64), _HEX]
Mask256 = Annotated[int, _mask(256), Field(strict=True, ge=0, lt=1 << 256), _HEX]
Weight = Annotated[int, Field(strict=True, ge=0, le=15)]
Blocks = Annotated[int, Field(strict=True, ge=0, le=255)]
Packets = Annotated[int, Field(strict=True, ge=0, le=65535)]
Timers = Annotated[dict[int, int], _by_level(65535)]
Indices = Annotated[dict[int, int], _by_level(255)]


class CongestionControl(Model):
    """Settings of switches (`sw`) and adapters (`ca`); the meaning of each is in docs/packet.md."""

    cc_key: Number64 = 0
    cc_sw_cong_setting_control_map: Mask32 = SWITCH_PARTS
    cc_sw_cong_setting_victim_mask: Mask256 = 0
    cc_sw_cong_setting_credit_mask: Mask256 = 0
    cc_sw_cong_setting_threshold: Weight = 0
    cc_sw_cong_setting_packet_size: Blocks = 0
    cc_sw_cong_setting_credit_starvation_threshold: Weight = 0
    cc_sw_cong_setting_credit_starvation_return_delay: Annotated[
        Delay,
        BeforeValidator(_one_delay, json_schema_input_type=str),
        PlainSerializer(_delay_text, return_type=str),
    ] = (0, 0)
    cc_sw_cong_setting_marking_rate: Packets = 0
    cc_ca_cong_setting_port_control: Annotated[int, Field(strict=True, ge=0, le=1)] = 0
    cc_ca_cong_setting_control_map: Mask16 = 0xFFFF
    cc_ca_cong_setting_ccti_timer: Timers = Field(default={})
    cc_ca_cong_setting_ccti_increase: Indices = Field(default={})
    cc_ca_cong_setting_trigger_threshold: Indices = Field(default={})
    cc_ca_cong_setting_ccti_min: Indices = Field(default={})
    cc_cct: Annotated[
        tuple[Delay, ...],
        BeforeValidator(_delays, json_schema_input_type=str),
        PlainSerializer(lambda table: ",".join(map(_delay_text, table)), return_type=str),
    ] = ()

    @model_validator(mode="after")
    def _within_the_table(self) -> CongestionControl:
        limit = max(len(self.cc_cct) - 1, 0)
        for level, least in self.cc_ca_cong_setting_ccti_min.items():
            if least > limit:
                raise ValueError(f"got ccti_min {least} for service level {level}, beyond the table's {limit}")
        return self
