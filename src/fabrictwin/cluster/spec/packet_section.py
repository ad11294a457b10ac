"""The `run.packet` section of a spec: how the packet engine models a network.

A key that is left out takes the engine's default (`engines.packet.packet_options`). A key that means nothing
beside the others is an error here; one that means nothing on the cluster's technology is an error where the
engine is set up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from fabrictwin.base.congestion_controls import CONTROLS, PRESETS, Control, DcqcnSet, Preset
from fabrictwin.base.units import PS_PER_US, Duration, Rate, Size
from fabrictwin.cluster.spec.cluster_section import Model

Balance = Literal["routed", "adaptive", "spray"]
Yes = Annotated[bool, Field(strict=True)]


FORWARD = re.compile(r"^(off|exact|\d{1,2}(\.\d{1,4})? ?%)$")


def _forward(value: object) -> str:
    """Return off, exact or a share of at most 10 %; YAML takes a bare off for False."""
    text = "off" if value is False else str(value)
    if not FORWARD.match(text) or not 0 < (forward_share(text) or 0.1) <= 0.1:
        raise ValueError(f"got {text!r}, expected off, exact, or the error that is allowed (0.1%, at most 10%)")
    return text


def forward_share(text: str) -> float | None:
    """Return the share that `fast_forward` allows, None where it names none."""
    return float(text.rstrip("% ")) / 100 if text.endswith("%") else None


FastForward = Annotated[str, BeforeValidator(_forward)]


def _whole(least: int, most: int) -> object:
    return Field(strict=True, ge=least, le=most)


_ENTRIES = r"^[0-7]:\d{1,3}(,[0-7]:\d{1,3}){0,63}$"


class OwnDcqcn(Model):
    """DCQCN's parameters: those of a set with some changed."""

    like: DcqcnSet
    ecn_min: Size | None = None  # both or none, at ports of any rate
    ecn_max: Size | None = None
    ecn_probability: Annotated[float, Field(gt=0, le=1)] | None = None  # of a mark at ecn_max
    additive: Rate | None = None  # both or none, at any rate
    hyper: Rate | None = None
    increase_timer: Duration | None = None
    cut_timer: Duration | None = None  # least time between two
    cnp_timer: Duration | None = None

    @model_validator(mode="after")
    def _together(self) -> OwnDcqcn:
        for a, b in (("ecn_min", "ecn_max"), ("additive", "hyper")):
            if (getattr(self, a) is None) != (getattr(self, b) is None):
                raise ValueError(f"got one of {a} and {b}, expected both or neither")
        if self.ecn_min is not None and self.ecn_max is not None and not 0 < self.ecn_min <= self.ecn_max:
            raise ValueError("got ecn_min and ecn_max, expected the first above 0 B and not above the second")
        for key, unit, says in _UNITS:
            value = getattr(self, key)
            if value is not None and (value < unit or value % unit):
                raise ValueError(f"got {key}, expected whole {says}, at least one")
        return self


_UNITS = (
    ("additive", 10**6, "Mb/s"),
    ("hyper", 10**6, "Mb/s"),
    ("increase_timer", PS_PER_US, "microseconds"),
    ("cut_timer", PS_PER_US, "microseconds"),
    ("cnp_timer", PS_PER_US, "microseconds"),
)


class Packet(Model):
    """Balancing, congestion control, transport, switches and limits of the packet engine."""

    balance: Balance | None = None
    preset: Preset | None = None  # Ethernet: stands for the next three
    control: Control | None = None
    controls: dict[Annotated[int, Field(ge=0, le=15)], Control] | None = None  # Ethernet: of service levels
    dcqcn: DcqcnSet | OwnDcqcn | None = None
    lossless: Yes | None = None  # Ethernet
    lossy_priorities: list[Annotated[int, _whole(0, 7)]] | None = None  # Ethernet: those that are never paused
    retransmission: Literal["go-back-n", "selective"] | None = None
    timeout: Annotated[int, _whole(0, 31)] | None = None  # 4.096 us * 2^timeout; 0 is never
    retry_count: Annotated[int, _whole(0, 7)] | None = None
    rnr_retry: Annotated[int, _whole(0, 7)] | None = None
    rnr_timer: Duration | None = None
    ack_every: Annotated[int, _whole(1, 256)] | None = None
    window: Size | None = None
    window_packets: Annotated[int, _whole(2, 65536)] | None = None
    virtual_lanes: Literal[1, 2, 4, 8] | None = None
    service_level: Annotated[int, _whole(0, 15)] | None = None  # of all connections
    service_levels: dict[str, Annotated[int, _whole(0, 15)]] | None = None  # by a communication's name
    sl_to_vl: Annotated[list[Annotated[int, _whole(0, 7)]], Field(min_length=16, max_length=16)] | None = None
    vl_high: Annotated[str, Field(pattern=_ENTRIES)] | None = None  # InfiniBand: lane:weight, as OpenSM writes it
    vl_low: Annotated[str, Field(pattern=_ENTRIES)] | None = None
    vl_high_limit: Annotated[int, _whole(0, 255)] | None = None
    strict_priorities: list[Annotated[int, _whole(0, 7)]] | None = None  # Ethernet
    ets_weights: list[Annotated[int, _whole(1, 1000)]] | None = None  # Ethernet
    store_and_forward: Yes | None = None
    buffer: Size | None = None  # Ethernet, of every switch
    buffer_alpha: Annotated[float, Field(ge=1 / 256, le=64)] | None = None  # Ethernet
    credit_buffer: Size | None = None  # InfiniBand, of a lane at every input
    credit_batch: Size | None = None
    head_of_queue_lifetime: Duration | None = None  # InfiniBand
    gpudirect: Yes | None = None
    staging_chunk: Size | None = None
    staging_time: Duration | None = None
    fast_forward: FastForward | None = None
    memory_limit: Size | None = None
    packet_limit: Annotated[int, _whole(1, 10**15)] | None = None
    message_limit: Annotated[int, _whole(1, 10**9)] | None = None
    parts: Annotated[int, _whole(1, 64)] | None = None  # of the fabric, played side by side

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any) -> Any:
        """Write out what a preset stands for."""
        if not isinstance(data, Mapping) or data.get("preset") not in PRESETS:
            return data
        means = PRESETS[data["preset"]]
        for key, value in means.items():
            if data.get(key, value) not in (None, value):
                said = str(value).lower()
                raise ValueError(f"got {key}: {data[key]} beside preset: {data['preset']}, which is {key}: {said}")
        return {**data, **means}

    @model_validator(mode="after")
    def _together(self) -> Packet:
        own = set((self.controls or {}).values())
        if self.dcqcn is not None and "dcqcn" not in own | {self.control}:
            raise ValueError("got dcqcn, which means nothing without control: dcqcn")
        if own and "nscc" in own | {self.control}:
            raise ValueError(
                "got controls with nscc, which asks every switch to trim; expected it as the only control"
            )
        if self.lossy_priorities and self.lossless is False:
            raise ValueError("got lossy_priorities with lossless: false, which has no others")
        several = self.balance in ("adaptive", "spray")
        control = None if self.control is None else next(iter(CONTROLS[self.control].values()))
        if self.retransmission == "go-back-n" and (several or (control is not None and control.reorders)):
            why = f"balance: {self.balance}" if several else f"control: {self.control}"
            raise ValueError(f"got retransmission: go-back-n with {why}, which reorders and needs selective")
        for key, what in {} if control is None else control.decides.items():
            if getattr(self, key) not in (None, False):
                raise ValueError(f"got {key} with control: {self.control}, which {what}")
        if self.vl_high_limit is not None and self.vl_high is None:
            raise ValueError("got vl_high_limit, which means nothing without vl_high")
        if self.gpudirect is not False:
            for key in ("staging_chunk", "staging_time"):
                if getattr(self, key) is not None:
                    raise ValueError(f"got {key}, which means nothing without gpudirect: false")
        if self.staging_chunk == 0:
            raise ValueError("got staging_chunk 0 B, expected some bytes, such as 512 KiB")
        if self.window_packets is not None and self.window_packets & (self.window_packets - 1):
            raise ValueError(f"got window_packets {self.window_packets}, expected a power of two")
        return self
