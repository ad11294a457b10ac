"""The `network.qos` section of a spec: classes of traffic, and what each port does with each priority.

Its upper part is what `fabrictwin configure` makes configurations for. `ports` is what the packet engine plays: a
list of rows, later ones over earlier ones, each for the ports that its names or globs match. A configuration that
was read from switches and hosts becomes such rows.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from fabrictwin.base.units import Duration, Size
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.cluster.spec.model_base import Model

Yes = Annotated[bool, Field(strict=True)]


def _key(value: object) -> object:
    """Return the number of a key: YAML's and JSON's are texts."""
    number = whole_or_none(value) if isinstance(value, str) else None
    return value if number is None else number


Priority = Annotated[int, BeforeValidator(_key, json_schema_input_type=int), Field(strict=True, ge=0, le=7)]
Dscp = Annotated[int, BeforeValidator(_key, json_schema_input_type=int), Field(strict=True, ge=0, le=63)]
Level = Annotated[int, BeforeValidator(_key, json_schema_input_type=int), Field(strict=True, ge=0, le=14)]
Watch = Annotated[Duration, Field(gt=0)]
Chip = Literal[
    "spectrum-1",
    "spectrum-2",
    "spectrum-3",
    "spectrum-4",
    "spectrum-5",
    "spectrum-6",
    "tomahawk",
    "tomahawk-4",
    "tomahawk-5",
]


class QosEcn(Model):
    """Marking at a queue: nothing below `min`, everything above `max`, up to `probability` between."""

    min: Size
    max: Size
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> QosEcn:
        if self.min >= self.max:
            raise ValueError("got min that is not below max")
        return self


class QosWatchdog(Model):
    """What a port does about a pause without end: after `detection` its queue is dropped or goes on."""

    detection: Watch
    restoration: Watch
    action: Literal["drop", "forward"] = "drop"


class QosPriority(Model):
    """What a port gives to a priority, coming in (headroom and threshold) and going out (marks, service).

    The threshold is `alpha` times what the switch's buffer has free, or `threshold` bytes.
    """

    headroom: Size | None = None
    alpha: Annotated[float, Field(ge=1 / 256, le=128)] | None = None
    threshold: Size | None = None
    reserve: Size | None = None
    resume: Size | None = None
    ecn: QosEcn | None = None
    strict: Yes | None = None
    weight: Annotated[int, Field(strict=True, ge=1, le=100)] | None = None

    @model_validator(mode="after")
    def _one_threshold(self) -> QosPriority:
        if self.alpha is not None and self.threshold is not None:
            raise ValueError("got alpha and threshold, expected one of the two")
        return self


class QosPort(Model):
    """Ports by name or glob (`leaf-*/*`, `host-0/mlx5_0`), and what is said of them; the rest stays as it was."""

    ports: tuple[Annotated[str, Field(min_length=1)], ...]
    pauses: tuple[Priority, ...] | None = None  # priorities that it sends pauses for
    obeys: tuple[Priority, ...] | None = None  # priorities that pauses stop
    groups: dict[Dscp, Priority] | None = None  # priority by DSCP of what comes in; others 0
    queues: dict[Dscp, Priority] | None = None  # and of the queue that it leaves by
    priorities: dict[Priority, QosPriority] | None = None
    response: Duration | None = None  # from a pause frame's arrival to its effect
    gearbox: Duration | None = None  # more on the way to its peer
    frame: Annotated[Size, Field(gt=0)] | None = None  # larger ones are dropped, headers counted
    cell: Annotated[Size, Field(gt=0)] | None = None  # of its switch's buffer
    watchdog: QosWatchdog | None = None


class Qos(Model):
    """Classes of traffic on Ethernet, and rows for ports."""

    lossless: Yes = True
    dscp: Dscp = 26
    priority: Priority = 3
    cnp_dscp: Dscp = 48
    cnp_priority: Priority = 6
    dscp_of_level: dict[Level, Dscp] = Field(default_factory=dict)  # other service levels
    chip: Chip | None = None  # of the switches, where the catalog does not tell
    ports: tuple[QosPort, ...] = ()

    @model_validator(mode="after")
    def _apart(self) -> Qos:
        if self.dscp == self.cnp_dscp:
            raise ValueError("got the same DSCP for RoCE and its CNPs")
        if self.priority == self.cnp_priority:
            raise ValueError("got the same priority for RoCE and its CNPs")
        return self
