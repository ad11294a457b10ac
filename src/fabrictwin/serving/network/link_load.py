"""What neighbours on the fabric send over every port, and the rates that they leave to a server.

A neighbour's traffic repeats: a job's step, slice by slice as the flow engine played it, or a server's mean. A
server's messages get what neighbours do not use of a link at that time, and at least an equal share of it with
them (max-min fairness among as many as send there). Each runs at its own pace: slices follow the clock.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.twin.twin import Twin

BITS = 8
NEGLIGIBLE = 1 / 64
"""Of a link: less is left out."""
FOREVER = 2**63 - 1

Phase = tuple[int, ...]
"""The slice that each neighbour is in."""


@record
class LinkLoad:
    """Traffic of one neighbour.

    Attributes:
        period_ps: After which it repeats.
        bps: Payload over each port in each slice of the period, b/s, of shape [slices, ports].
    """

    period_ps: int
    bps: F64

    def slice_at(self, now_ps: int) -> int:
        """Return the slice at an instant, picoseconds."""
        return now_ps % self.period_ps * len(self.bps) // self.period_ps

    def next_slice_ps(self, now_ps: int) -> int:
        """Return when the next slice begins, picoseconds; never of a load that is always the same."""
        if len(self.bps) == 1:
            return FOREVER
        place, begun = self.slice_at(now_ps), now_ps // self.period_ps * self.period_ps
        return begun - (-(place + 1) * self.period_ps // len(self.bps))


def load_of(period_ps: int, sent_bytes: F64) -> LinkLoad:
    """Return the load of bytes over each port in each slice of a period, of shape [slices, ports]."""
    seconds = period_ps / len(sent_bytes) / PS_PER_S
    return LinkLoad(period_ps, sent_bytes * BITS / seconds)


@record
class Neighbourhood:
    """All neighbours of a server."""

    loads: tuple[LinkLoad, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.loads)

    def phase(self, now_ps: int) -> Phase:
        """Return the slice of each neighbour at an instant, picoseconds."""
        return tuple(load.slice_at(now_ps) for load in self.loads)

    def next_ps(self, now_ps: int) -> int:
        """Return when some neighbour's next slice begins, picoseconds."""
        return min((load.next_slice_ps(now_ps) for load in self.loads), default=FOREVER)

    def rates(self, twin: Twin, phase: Phase) -> dict[int, int]:
        """Return the rates that neighbours leave, b/s, by port; ports that they hardly use are left out."""
        fabric = twin.fabric
        payload = np.maximum(fabric.port_payload_bps.astype(float), 1.0)
        shares = [load.bps[place] / payload for load, place in zip(self.loads, phase, strict=True)]
        used, sending = np.sum(shares, axis=0), np.sum([share > NEGLIGIBLE for share in shares], axis=0)
        left = np.maximum(1 - used, 1 / (1 + sending))
        return {
            port: round(twin.link_rate_bps.get(port, int(fabric.port_rate_bps[port])) * float(left[port]))
            for port in np.flatnonzero(sending).tolist()
        }


ALONE = Neighbourhood()
