"""Adapters, switches, and the presets that make a network of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fabrictwin.base.units import Duration, Rate, Size
from fabrictwin.catalog.figures import Entry, Figure, Model
from fabrictwin.catalog.quantities import Count, Identifier, MessageRate


class Nic(Entry):
    """A network adapter. Times are for one control transaction where the host's PCIe graph is not walked."""

    ports: Figure[Count]
    port_rate: Figure[Rate]
    infiniband: str
    ethernet: str
    pcie: str
    pcie_lanes: Figure[Count]
    message_rate: Figure[MessageRate]
    qp_message_rate: Figure[MessageRate]
    post: Figure[Duration]
    store: Figure[Duration]
    doorbell: Figure[Duration]
    poll: Figure[Duration]
    doorbell_room: Figure[Size]
    wqe_fetch: Figure[Duration]
    processing: Figure[Duration]
    dma_read: Figure[Duration]
    dma_write: Figure[Duration]
    max_outstanding_reads: Figure[Count]
    mtu: Figure[Size]
    device_put: Figure[Duration] | None = None  # none: no kernel of a GPU can post to it
    transport: Literal["verbs", "srd"] = (
        "verbs"  # srd: packets sprayed over paths, delivered out of order, no pauses
    )
    spray_paths: Figure[Count] | None = None
    reported_latency: Figure[Duration] | None = None  # what its driver tells NCCL's tuner of the network


class VerbsDevice(Entry):
    """What a family of adapters tells programs of itself: limits of its objects, and how it is numbered."""

    vendor_id: Figure[Identifier]
    part_ids: dict[str, Figure[Identifier]]  # by the adapter's catalog name
    max_qp: Figure[Count]
    max_qp_wr: Figure[Count]
    max_sge: Figure[Count]
    max_cq: Figure[Count]
    max_cqe: Figure[Count]
    max_mr: Figure[Count]
    max_mw: Figure[Count]
    max_pd: Figure[Count]
    max_ah: Figure[Count]
    max_srq: Figure[Count]
    max_srq_wr: Figure[Count]
    max_srq_sge: Figure[Count]
    max_pkeys: Figure[Count]
    max_res_rd_atom: Figure[Count]
    max_inline: Figure[Size]
    max_message: Figure[Size]
    local_ca_ack_delay: Figure[Identifier]  # 4.096 us times two to the power of it
    completion_vectors: Figure[Count]


class PortMode(Model):
    """One way to run a switch's ports: how many, and at which speed."""

    technology: Literal["infiniband", "ethernet"]
    speed: str
    width: Literal[1, 2, 4, 8, 12] = 4
    ports: Figure[Count]


class Switch(Entry):
    """A network switch. The first mode is the usual one. One with `sharp` can reduce in the network.

    `aliases` are names that it is sold by, in small letters.
    """

    aliases: tuple[str, ...] = ()
    modes: tuple[PortMode, ...]
    sharp: bool = False
    latency: Figure[Duration]
    buffer: Figure[Size]

    @property
    def ports(self) -> int:
        return self.modes[0].ports.value

    @property
    def technology(self) -> str:
        return self.modes[0].technology


class FabricPreset(Entry):
    """A network to compare: technology, switch, rate of links to hosts, and what is on in it."""

    technology: Literal["infiniband", "ethernet"]
    switch: str
    link_rate: Figure[Rate]
    packet: dict[str, Any] = Field(default_factory=dict)  # keys of a spec's run.packet
    transport: Literal["rdma", "tcp"] = "rdma"
