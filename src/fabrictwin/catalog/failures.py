"""What failed on clusters whose logs were published: components, how often, and how a job sees it.

A rate is written as events over exposure, `148 / 884736 GPU-days`, and scales with the number of such devices that
a job has. `job` counts the job itself, whatever its size.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer

from fabrictwin.base.errors import did_you_mean, quoted
from fabrictwin.catalog.figures import Entry, Figure, Model

DEVICES = ("GPU", "host", "adapter", "cable", "switch", "job")
_HOURS = {"days": 24.0, "day": 24.0, "hours": 1.0, "hour": 1.0}
_RATE = re.compile(r"\s*(\d[\d,]*(?:\.\d+)?)\s*/\s*(?:(\d[\d,]*(?:\.\d+)?)\s+)?([A-Za-z]+)-([a-z]+)\s*\Z")
EXAMPLE = "148 / 884736 GPU-days"
LONGEST = 80


class FailureRate(NamedTuple):
    """So many events in so many hours of one such device; `text` as it was written."""

    events: float
    device_hours: float
    device: str
    text: str

    def a_day(self, devices: float) -> float:
        """Return the events a day of so many devices."""
        return self.events * 24.0 / self.device_hours * devices


def parse_failure_rate(value: object) -> FailureRate:
    """`'35 / 884736 GPU-days'` to a rate. Raises ValueError."""
    if isinstance(value, FailureRate):
        return value
    match = _RATE.match(value) if isinstance(value, str) and len(value) <= LONGEST else None
    if match is None:
        raise ValueError(f"got {quoted(value)}, expected events over exposure, such as {EXAMPLE!r}")
    events, exposure, device, unit = match.groups()
    if device not in DEVICES:
        known = ", ".join(DEVICES)
        raise ValueError(f"got {device!r}, expected one of {known}{did_you_mean(device, DEVICES)}")
    if unit not in _HOURS:
        raise ValueError(f"got {device}-{unit}, expected {device}-days or {device}-hours")
    time = float((exposure or "1").replace(",", ""))
    if not time:
        raise ValueError(f"got {quoted(value)}, expected an exposure above 0")
    return FailureRate(float(events.replace(",", "")), time * _HOURS[unit], device, str(value).strip())


Rate = Annotated[
    FailureRate,
    BeforeValidator(parse_failure_rate, json_schema_input_type=str),
    PlainSerializer(lambda rate: rate.text, return_type=str),
]
# error: the job ends at once; hang: it waits until somebody notices; silent: it goes on, wrong; planned: announced
Shows = Literal["error", "hang", "silent", "planned"]


class FailedComponent(Model):
    """One line of a log: `replaces` says that the host goes to repair and a spare takes its place."""

    title: str = Field(min_length=1, max_length=80)
    rate: Figure[Rate]
    shows: Shows = "error"
    replaces: bool = False


class FailureLog(Entry):
    """The failures of one published run or cluster."""

    components: dict[str, FailedComponent]
