"""What software on a host costs: an operating system's network stack and its sockets, a framework's operators."""

from __future__ import annotations

from fabrictwin.base.units import Duration, Size
from fabrictwin.catalog.figures import Entry, Figure, Model
from fabrictwin.catalog.quantities import Count, Ratio


class StackWork(Model):
    """Time of a core: for a system call, for a segment (at either end), for a packet of it at the receiver.

    `far_copy` is what a copy takes where nobody put the reader next to the interrupts, over what it takes there.
    """

    call: Figure[Duration]
    segment: Figure[Duration]
    packet: Figure[Duration]
    far_copy: Figure[Ratio]


class StackWaits(Model):
    """Time in which nothing works: until the reader runs, in a virtual machine, in each further namespace.

    Adapters wait before they interrupt: `moderation` where packets are few, `busy_moderation` in trains of them.
    """

    wake: Figure[Duration]
    virtual: Figure[Duration]
    namespace: Figure[Duration]
    moderation: Figure[Duration]
    busy_moderation: Figure[Duration]


class StackLimits(Model):
    """Sizes and times that its sockets keep to."""

    segment: Figure[Size]
    tcp_headers: Figure[Size]
    least_rto: Figure[Duration]
    first_window: Figure[Count]


class IpoibModes(Model):
    """Largest IP packet of IPoIB: datagram mode over links with 2 KiB and 4 KiB packets, connected mode."""

    datagram_2k: Figure[Size]
    datagram: Figure[Size]
    connected: Figure[Size]


class HostStack(Entry):
    """One operating system's."""

    work: StackWork
    waits: StackWaits
    limits: StackLimits
    ipoib: IpoibModes


class Framework(Entry):
    """A framework of training as the host meets it: its time for a kernel that it issues one by one."""

    operator: Figure[Duration]
