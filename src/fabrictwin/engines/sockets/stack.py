"""The way of bytes through two hosts' stacks, and what each part of it costs.

A write is a system call that copies bytes into the kernel. They leave as segments of up to 64 KiB, which the
adapter cuts into packets; where nothing cuts (a tunnel, IPoIB, single small writes) every packet is a segment
of its own. The receiving adapter waits a little before it interrupts. The interrupted core takes packets,
merges them to segments and takes each through the stack; the reader is woken, and a system call copies bytes
out.

What a core moves by TCP is its processor's (`tcp_send`, `tcp_receive`, `tcp_read` of the catalog), fixed costs
are the operating system's (`host_stack`). Left out: losses and windows (the packet engine's), caches that grow
too small, traffic of others. Source: Cai et al., "Understanding Host Network Stack Overheads", SIGCOMM 2021.
"""

from __future__ import annotations

from typing import Literal

from fabrictwin import catalog
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S

Cores = Literal["together", "apart", ""]
Network = Literal["ethernet", "ipoib-datagram", "ipoib-connected"]
JUMBO_BYTES = 9000  # with which the processors' figures were measured
ENCAPSULATION_BYTES = 4  # of IPoIB
LINK_MTU_BYTES = 4096  # into which adapters cut what connected mode sends


@record
class Processor:
    """Picoseconds of a core for each byte: all that sending takes, receiving without the copy, the copy."""

    send_ps: float
    receive_ps: float
    copy_ps: float

    @staticmethod
    def of(chip: catalog.Chip) -> Processor:
        """Return a processor's. Raises ValueError where the catalog has no figures of TCP on it."""
        if chip.tcp_send is None or chip.tcp_receive is None or chip.tcp_read is None:
            raise ValueError(f"the catalog does not know what a core of {chip.title} moves by TCP")
        per_byte = [8 * PS_PER_S / f.value for f in (chip.tcp_send, chip.tcp_receive, chip.tcp_read)]
        return Processor(per_byte[0], per_byte[1] - per_byte[2], per_byte[2])


@record
class Costs:
    """Fixed costs of a stack in picoseconds; `far_copy` is a factor."""

    call: float
    segment: float
    packet: float
    far_copy: float
    wake: float
    virtual: float
    namespace: float

    @staticmethod
    def of(stack: catalog.HostStack) -> Costs:
        """Return what the catalog has."""
        work, waits = stack.work, stack.waits
        return Costs(
            *(float(one.value) for one in (work.call, work.segment, work.packet, work.far_copy)),
            *(float(one.value) for one in (waits.wake, waits.virtual, waits.namespace)),
        )


@record
class Wire:
    """Rate in bits a second, largest IP packet, and bytes around it."""

    rate_bps: float
    mtu_bytes: int
    header_bytes: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of a stream in a full packet."""
        return self.mtu_bytes - int(catalog.host_stack("linux").limits.tcp_headers.value)

    def ps(self, size: float) -> float:
        """Return the time of so many bytes of a stream, in full packets, in picoseconds."""
        packet = self.mtu_bytes + self.header_bytes
        return size * packet / self.payload_bytes * 8 * PS_PER_S / self.rate_bps


@record
class Ends:
    """The hosts: further namespaces that packets pass at each end, virtual machines, whether segments are cut and
    merged, whether bytes are read where they lie, and the reading core beside that of the interrupts.
    """

    namespaces: int = 0
    virtual: bool = False
    offload: bool = True
    zero_copy: bool = False
    cores: Cores = ""


Path = Literal["host", "zero-copy", "pod", "tunnel", "vm", "vm-pod"]


def ends(path: Path, network: Network = "ethernet", cores: Cores = "") -> Ends:
    """Return what bytes pass in two hosts.

    `pod` is one namespace more, `tunnel` that and nothing that cuts and merges segments, as in IPoIB's datagrams;
    `vm-pod` a pod in a virtual machine.
    """
    return Ends(
        namespaces=int(path in ("pod", "tunnel", "vm-pod")),
        virtual=path.startswith("vm"),
        offload=path != "tunnel" and network != "ipoib-datagram",
        zero_copy=path == "zero-copy",
        cores=cores,
    )


@record
class Stack:
    """Two hosts and what joins them."""

    wire: Wire
    ends: Ends
    processor: Processor
    costs: Costs

    def segment_bytes(self, largest: int = 0) -> int:
        """Return the bytes that go through the stack at once; `largest` in place of the catalog's 64 KiB."""
        if not self.ends.offload:
            return self.wire.payload_bytes
        return max(largest or int(catalog.host_stack("linux").limits.segment.value), self.wire.payload_bytes)

    def through_ps(self) -> float:
        """Return a core's time for one segment at one end, whatever its size."""
        return self.costs.segment * (1 + self.ends.namespaces)

    def per_byte_ps(self, all_of_it: float, packet_ps: float = 0.0) -> float:
        """Return what is left of a core's time for a byte when segments have been taken off, and packets.

        What a core moves was measured with full segments of jumbo frames.
        """
        full = int(catalog.host_stack("linux").limits.segment.value)
        jumbo = JUMBO_BYTES - int(catalog.host_stack("linux").limits.tcp_headers.value)
        return max(all_of_it - self.costs.segment / full - packet_ps / jumbo, 0.0)

    def receive_ps(self, size: float) -> float:
        """Return the interrupted core's time for one segment of so many bytes."""
        packets, packet = max(size / self.wire.payload_bytes, 1.0), self.costs.packet
        return self.through_ps() + packets * packet + self.per_byte_ps(self.processor.receive_ps, packet) * size

    def send_ps(self, size: float) -> float:
        """Return the sending core's time for one segment of so many bytes, without its system calls."""
        return self.through_ps() + self.per_byte_ps(self.processor.send_ps) * size

    def copy_ps(self, size: float, *, near: bool) -> float:
        """Return the reading core's time for so many bytes, without its system calls."""
        if self.ends.zero_copy:
            return 0.0
        return self.processor.copy_ps * size * (1.0 if near else self.costs.far_copy)


def wire(network: Network, rate_bps: float, mtu_bytes: int = 0) -> Wire:
    """Return the wire of `ethernet`, `ipoib-datagram` or `ipoib-connected`; an MTU of 0 is what is usual there.

    Usual are 9,000 bytes on Ethernet from 100 Gb/s, 1,500 below; datagrams of 2,044 bytes below 50 Gb/s, 4,092
    from there.
    """
    fast, modes = rate_bps >= 50e9, catalog.host_stack("linux").ipoib
    if network == "ethernet":
        fields = catalog.headers("ethernet").bytes_of("preamble", "ethernet", "FCS", "gap")
        return Wire(rate_bps, mtu_bytes or (JUMBO_BYTES if rate_bps >= 100e9 else 1500), fields)
    headers = catalog.headers("infiniband")
    if network == "ipoib-connected":
        size = mtu_bytes or int(modes.connected.value)
        around = -(-size // LINK_MTU_BYTES) * headers.bytes_of("LRH", "BTH", "ICRC", "VCRC")
        return Wire(rate_bps, size, ENCAPSULATION_BYTES + around)
    around = headers.bytes_of("LRH", "BTH", "DETH", "ICRC", "VCRC")
    return Wire(
        rate_bps,
        mtu_bytes or int((modes.datagram if fast else modes.datagram_2k).value),
        ENCAPSULATION_BYTES + around,
    )
