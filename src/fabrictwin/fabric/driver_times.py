"""Times of a host's processor around each message of a program that waits for it: the driver's, by adapter."""

from __future__ import annotations

from fabrictwin import catalog
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import Fabric


@record
class DriverTimes:
    """In picoseconds."""

    post_ps: int  # before the store that rings the doorbell
    poll_ps: int  # to find a completion that is there


def driver_times(fabric: Fabric, adapter: int) -> DriverTimes:
    """Times for an adapter's type."""
    nic = catalog.nic(fabric.type_names[int(fabric.node_type[fabric.nic_node[adapter]])])
    return DriverTimes(nic.post.value, nic.poll.value)
