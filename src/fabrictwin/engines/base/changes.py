"""Changes of links and forwarding tables at a time, one record for all of them."""

from __future__ import annotations

import bisect

import numpy as np
import numpy.typing as npt

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.kernel.codes import NEVER
from fabrictwin.routing.port_settings import PortSettings

FOREVER = NEVER


@record
class TableEntries:
    """Entries of linear forwarding tables: row of `Routes.switches`, LID, port (255 none). All of shape [n].

    InfiniBand alone: Ethernet's switches hold groups, which nothing withdraws while a job runs.
    """

    row: npt.NDArray[np.int64]
    lid: npt.NDArray[np.int64]
    port: npt.NDArray[np.uint8]


@record
class TimedChange:
    """A port's directed link, its bit errors, or what ports hold changes at a time of the engine's clock.

    `rate_bps` 0 takes the link down, None restores what was built. With `error_rate` or `pause` the rate stays as
    it is; with `tables` or `settings` there is no port.
    """

    time_ps: int
    port: int = NONE
    rate_bps: int | None = None
    error_rate: float | None = None  # chance that a bit is hit, after correction
    tables: TableEntries | None = None
    settings: PortSettings | None = None
    pause: tuple[int, bool] | None = None  # Ethernet: the port pauses its peer on a priority without end, or stops


class PendingChanges:
    """Changes that are still to come, in order of time; ties in the order in which they were asked for."""

    def __init__(self) -> None:
        self.pending: list[TimedChange] = []

    def __bool__(self) -> bool:
        return bool(self.pending)

    @property
    def next_ps(self) -> int:
        """Time of the next change, FOREVER where there is none."""
        return self.pending[0].time_ps if self.pending else FOREVER

    def add(self, change: TimedChange, now_ps: int) -> None:
        """Take up a change. Raises ConfigError for a time that is over."""
        if change.time_ps < now_ps:
            raise ConfigError(f"got a change at {change.time_ps} ps, it is {now_ps} ps already", key="faults")
        bisect.insort(self.pending, change, key=lambda c: c.time_ps)

    def pop(self) -> TimedChange:
        """Return the next change and forget it."""
        return self.pending.pop(0)


def flapping(port: int, peer: int, *, start_ps: int, down_ps: int, up_ps: int, times: int) -> list[TimedChange]:
    """Return the changes of a cable that goes down and comes back, both directions at once."""
    changes = []
    for i in range(times):
        at = start_ps + i * (down_ps + up_ps)
        changes += [TimedChange(at, end, 0) for end in (port, peer)]
        changes += [TimedChange(at + down_ps, end) for end in (port, peer)]
    return changes


def payload_bps(fabric: Fabric, change: TimedChange) -> int:
    """Return the payload rate of a link after a change of its rate. Raises ConfigError for what cannot be."""
    if not 0 <= change.port < fabric.ports:
        raise ConfigError(f"got port {change.port}, expected one of the fabric's {fabric.ports}")
    built = int(fabric.port_payload_bps[change.port])
    if change.rate_bps is None:
        return built
    if change.rate_bps < 0:
        raise ConfigError(f"got a rate of {change.rate_bps} b/s, expected one that is not negative")
    return round(change.rate_bps * (built / max(int(fabric.port_rate_bps[change.port]), 1)))
