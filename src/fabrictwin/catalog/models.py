"""What a catalog entry may say. Every number is a `Figure`: a value with its unit and its source.

A figure is a string (`312 TFLOP/s`), which then takes the source of its entry, or a mapping with `value`,
`source`, `estimate`, `note`. An estimate is a figure that its source does not state: carried over from a
sibling, derived, or a share of a measured sum; its note says how.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from fabrictwin.catalog.links import LinkType
from fabrictwin.catalog.quantities import (
    Bits,
    Capability,
    Count,
    Identifier,
    LaneRate,
    MessageRate,
    Ratio,
    Watts,
)
from fabrictwin.errors import did_you_mean
from fabrictwin.units import Duration, Flops, Length, Rate, Size, format_rate, format_time

T = TypeVar("T")

_LIGHT_MM_PER_S = 299_792_458_000
_PS_PER_S = 10**12


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Model):
    """Where figures come from."""

    title: str
    url: str = ""


class Figure(Model, Generic[T]):
    """One hardware figure. `value` is a plain number in internal units, `text` what the data file says."""

    value: T
    text: str = ""
    source: str
    estimate: bool = False
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, str):
            data = {"value": data}
        if not isinstance(data, dict):
            raise ValueError(f"got {data!r}, expected a string with its unit")
        data = dict(data)
        default = (info.context or {}).get("source", "")
        if not data.get("source") and not default:
            raise ValueError("a figure without a source, and the entry names none either")
        data.setdefault("source", default)
        if isinstance(data.get("value"), str):
            data.setdefault("text", data["value"])
        return data


class Entry(Model):
    """A named thing in the catalog."""

    name: str
    title: str
    source: str = ""
    note: str = ""

    def computed(self) -> dict[str, str]:
        """What follows from the figures, for people: label to value with its unit."""
        return {}


class GemmTable(Model):
    """Measured matrix products of one precision: `{"4096 x 4096 x 8192": "690 TFLOP/s"}` for m × n × k.

    A table may instead be `like` another (`h100-sxm/fp16`), its throughputs times `factor`.
    """

    source: str = ""
    estimate: bool = False
    note: str = ""
    points: dict[str, Flops] = {}
    like: str = ""
    factor: Ratio = Fraction(1)

    @model_validator(mode="before")
    @classmethod
    def _default_source(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, dict):
            data = {"source": (info.context or {}).get("source", ""), **data}
            if not data["source"]:
                raise ValueError("a table without a source, and the entry names none either")
            if bool(data.get("points")) == bool(data.get("like")):
                raise ValueError("expected either measured points or another table to be like")
        return data

    @field_validator("points")
    @classmethod
    def _shapes(cls, points: dict[str, float]) -> dict[str, float]:
        for shape in points:
            if not re.fullmatch(r"\d+ x \d+ x \d+", shape):
                raise ValueError(f"got {shape!r}, expected a shape m x n x k, such as '4096 x 4096 x 8192'")
        return points

    def rows(self) -> tuple[tuple[int, int, int, float], ...]:
        """The points as (m, n, k, FLOP/s), smallest product first."""
        rows = []
        for shape, flops in self.points.items():
            m, n, k = (int(side) for side in shape.split(" x "))
            rows.append((m, n, k, flops))
        return tuple(sorted(rows, key=lambda row: (row[0] * row[1] * row[2], row)))


class Attention(Model):
    """Measured attention throughput and the shape that it was measured with."""

    throughput: Figure[Flops]
    head_size: Figure[Count]
    sequence: Figure[Count]


class Gpu(Entry):
    """A GPU. `peak_flops` is dense, by precision; `gemm` and `attention` are what was measured of it."""

    power: Figure[Watts]
    sm_count: Figure[Count]
    peak_flops: dict[str, Figure[Flops]]
    memory: Figure[Size]
    memory_bandwidth: Figure[Rate]
    memory_bandwidth_measured: Figure[Rate]
    compute_capability: Figure[Capability]
    nvlink: str = ""
    nvlink_links: Figure[Count] | None = None
    pcie: str
    pcie_lanes: Figure[Count]
    kernel_launch: Figure[Duration]
    gemm: dict[str, GemmTable]
    attention: dict[Literal["flash", "materialised"], Attention]
    exponentials: Figure[Flops] | None = None  # of the special function units, e^x counted as one
    # times of a product over that of the tables, where a step does not run what was measured: in fp8 with full
    # sums (the tables' are cut short) or a scale for every block (the tables' have one), in fp4 as Transformer
    # Engine calls it (the tables' are of cuBLASLt alone)
    fp8_full_sums: Figure[Ratio] | None = None
    fp8_blocks: Figure[Ratio] | None = None
    fp4_in_engine: Figure[Ratio] | None = None

    @property
    def memory_efficiency(self) -> float:
        """The share of the memory's peak rate that a streaming kernel was measured to get."""
        return self.memory_bandwidth_measured.value / self.memory_bandwidth.value

    def computed(self) -> dict[str, str]:
        return {"memory efficiency": f"{self.memory_efficiency:.3f}"}


class Nvlink(Entry):
    """A generation of NVLink: one link, each direction."""

    lane_rate: Figure[LaneRate]
    lanes: Figure[Count]
    links_per_gpu: Figure[Count]
    kernel_rate: Figure[Rate]
    copy_rate_all_links: Figure[Rate]
    latency: Figure[Duration]

    @property
    def rate_bps(self) -> int:
        """Data rate of one link in each direction; NVLink figures are quoted after line code."""
        return self.lane_rate.value * self.lanes.value

    @property
    def copy_rate_bps(self) -> int:
        """What one link gives a copy engine, from the measured rate of a pair of GPUs."""
        return self.copy_rate_all_links.value // self.links_per_gpu.value

    def computed(self) -> dict[str, str]:
        return {
            "data rate of a link": format_rate(self.rate_bps),
            "data rate of a GPU": format_rate(self.rate_bps * self.links_per_gpu.value),
            "copy engines, of a link": format_rate(self.copy_rate_bps),
        }

    def link_type(self) -> LinkType:
        return LinkType(
            name=self.name,
            kind="nvlink",
            rate_bps=self.rate_bps,
            payload_rate_bps=self.kernel_rate.value,
            latency_ps=self.latency.value,
        )


class Pcie(Entry):
    """A generation of PCI Express: one lane, and how transactions are packed.

    `reckoned_rate` is what NCCL counts a lane as when it looks for channels.
    """

    lane_rate: Figure[LaneRate]
    reckoned_rate: Figure[Rate]
    line_code: Figure[Ratio]
    link_layer_share: Figure[Ratio]
    max_payload: Figure[Size]
    packet_overhead: Figure[Size]
    latency: Figure[Duration]

    def rate_bps(self, lanes: int) -> int:
        """Data rate of a link in each direction, after line code."""
        return round(self.lane_rate.value * self.line_code.value * lanes)

    def payload_rate_bps(self, lanes: int) -> int:
        """What full-sized write transactions carry: less link-layer traffic, headers and framing."""
        payload = self.max_payload.value
        share = self.link_layer_share.value * Fraction(payload, payload + self.packet_overhead.value)
        return round(self.lane_rate.value * self.line_code.value * lanes * share)

    def computed(self) -> dict[str, str]:
        return {
            "data rate of x16": format_rate(self.rate_bps(16)),
            "payload rate of x16": format_rate(self.payload_rate_bps(16)),
        }

    def link_type(self, lanes: int) -> LinkType:
        return LinkType(
            name=f"pcie-{self.name}-x{lanes}",
            kind="pcie",
            rate_bps=self.rate_bps(lanes),
            payload_rate_bps=self.payload_rate_bps(lanes),
            latency_ps=self.latency.value,
            payload_bytes=self.max_payload.value,
            overhead_bytes=self.packet_overhead.value,
        )


class CpuLink(Entry):
    """What joins the processors of a host.

    `pcie_rate` is what NCCL reckons of the PCI Express link that a GPU shows beside it.
    """

    rate: Figure[Rate]
    payload_rate: Figure[Rate]
    latency: Figure[Duration]
    pcie_rate: Figure[Rate] | None = None

    def link_type(self) -> LinkType:
        return LinkType(
            name=self.name,
            kind="cpu",
            rate_bps=self.rate.value,
            payload_rate_bps=self.payload_rate.value,
            latency_ps=self.latency.value,
        )


class Processor(Model):
    """How a processor tells who it is, and what NCCL reckons that it gets to another socket."""

    arch: Literal["x86_64", "arm64", "ppc64"]
    vendor: str = ""  # as CPUID has it: GenuineIntel, AuthenticAMD
    family: int = 0
    model: int = 0
    reckoned_rate: Figure[Rate]


class Chip(Entry):
    """What stands between links inside a host: an NVSwitch, a PCIe switch, a processor.

    `latency` is from port to port. `memory_latency` is from a processor's PCIe port into its memory. A processor's
    `tcp_send` and `tcp_receive` are what one core moves through sockets: system calls, protocol, interrupts,
    copies; `tcp_read` is what a thread reads whose packets another core takes in.
    """

    kind: Literal["nvswitch", "pcie_switch", "cpu"]
    processor: Processor | None = None
    latency: Figure[Duration]
    memory_latency: Figure[Duration] | None = None
    ports: Figure[Count] | None = None
    memory_bandwidth: Figure[Rate] | None = None
    cores: Figure[Count] | None = None
    tcp_send: Figure[Rate] | None = None
    tcp_receive: Figure[Rate] | None = None
    tcp_read: Figure[Rate] | None = None


class Fec(Model):
    """Forward error correction: a code word is collected, then decoded."""

    codeword: Figure[Bits]
    decode: Figure[Duration]

    def latency_ps(self, line_rate_bps: int) -> int:
        """Time a receiver adds at a line rate, in picoseconds."""
        return self.decode.value + -(-self.codeword.value * _PS_PER_S // line_rate_bps)


class Infiniband(Entry):
    """An InfiniBand speed: one lane."""

    lane_rate: Figure[LaneRate]
    line_code: Figure[Ratio]
    widths: tuple[Literal[1, 2, 4, 8, 12], ...] = (1, 2, 4, 8, 12)
    fec: Fec | None = None

    def rate_bps(self, width: int = 4) -> int:
        """Data rate of `width` lanes in each direction, in bits per second."""
        return round(self.lane_rate.value * self.line_code.value * width)

    def fec_latency_ps(self, width: int = 4) -> int:
        return 0 if self.fec is None else self.fec.latency_ps(self.lane_rate.value * width)

    def computed(self) -> dict[str, str]:
        rates = {f"data rate of {w}x": format_rate(self.rate_bps(w)) for w in self.widths}
        return rates if self.fec is None else rates | {"FEC at 4x": format_time(self.fec_latency_ps(4))}


class Ethernet(Entry):
    """An Ethernet speed."""

    lanes: Figure[Count]
    lane_rate: Figure[LaneRate]
    line_code: Figure[Ratio]
    fec: Fec

    @property
    def rate_bps(self) -> int:
        """Data rate in each direction, in bits per second."""
        return round(self.lane_rate.value * self.line_code.value * self.lanes.value)

    @property
    def fec_latency_ps(self) -> int:
        return self.fec.latency_ps(self.lane_rate.value * self.lanes.value)

    def computed(self) -> dict[str, str]:
        return {"data rate": format_rate(self.rate_bps), "FEC": format_time(self.fec_latency_ps)}


class Headers(Entry):
    """Bytes that a technology puts around a packet's payload, by field."""

    fields: dict[str, Figure[Size]]

    def bytes_of(self, *fields: str) -> int:
        """The sum of the named fields. Raises KeyError."""
        return sum(self.fields[field].value for field in fields)


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
    transport: Literal["verbs", "srd"] = (
        "verbs"  # srd: packets sprayed over paths, delivered out of order, no pauses
    )
    spray_paths: Figure[Count] | None = None


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
    """A network switch. The first mode is the usual one. One with `sharp` can reduce in the network."""

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
    packet: dict[str, Any] = {}  # keys of a spec's run.packet
    transport: Literal["rdma", "tcp"] = "rdma"


class Reach(Model):
    """The longest run of a medium at rates up to one."""

    rate: Figure[Rate]
    length: Figure[Length]


class Medium(Entry):
    """A cable. Reaches go from the slowest to the fastest rate; the last is the fastest that there is."""

    velocity_factor: Figure[Ratio]
    end_latency: Figure[Duration]
    reaches: tuple[Reach, ...]

    def reach_mm(self, rate_bps: int) -> int:
        """The longest run at a rate, in millimetres; 0 where the medium cannot carry it."""
        return next((r.length.value for r in self.reaches if rate_bps <= r.rate.value), 0)

    def latency_ps(self, length_mm: int) -> int:
        """Propagation and both ends, in picoseconds."""
        flight = length_mm * _PS_PER_S / (_LIGHT_MM_PER_S * self.velocity_factor.value)
        return round(flight) + 2 * self.end_latency.value


class HostPart(Model):
    """A part of a host's interior and who says so."""

    source: str = ""
    estimate: bool = False
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _default_source(cls, data: Any, info: ValidationInfo) -> Any:
        return {"source": (info.context or {}).get("source", ""), **data} if isinstance(data, dict) else data


class HostNic(HostPart):
    """One adapter of a host. `rail` is the GPU that it serves."""

    type: str
    hca: str
    rail: int


class HostLinks(HostPart):
    """Links between every node of `a` and every node of `b`: `count` of them between each pair."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    link: str
    count: int = Field(default=1, ge=1)

    @field_validator("a", "b", mode="before")
    @classmethod
    def _spread(cls, value: Any) -> Any:
        return tuple(spread(value)) if isinstance(value, list) else value


def repeated(items: Any) -> Any:
    """Links and adapters that a data file writes once with `times`, spelled out. Raises ValueError.

    Node numbers go up by `step` of their kind each time (else by 1), an adapter's name and rail by 1.
    """
    if not isinstance(items, list):
        return items
    result = []
    for item in items:
        if not isinstance(item, dict) or "times" not in item:
            result.append(item)
            continue
        item = dict(item)
        times, step = item.pop("times"), item.pop("step", {})
        if not isinstance(times, int) or times < 1 or not isinstance(step, dict):
            raise ValueError(f"got times {times!r} and step {step!r}, expected a number and steps by kind of node")
        result += [_shifted(item, i, step) for i in range(times)]
    return result


def _shifted(item: dict[str, Any], i: int, step: dict[str, int]) -> dict[str, Any]:
    def move(name: str, by: int) -> str:
        prefix = name.rstrip("0123456789")
        return f"{prefix}{int(name[len(prefix) :]) + by}"

    if "hca" in item:
        return {**item, "hca": move(item["hca"], i), "rail": item["rail"] + i}
    ends = {end: [move(n, i * step.get(n.rstrip("0123456789"), 1)) for n in spread(item[end])] for end in "ab"}
    return {**item, **ends}


class HostEdge(Model):
    """`count` parallel links of one type between two nodes of a host."""

    a: str
    b: str
    link: str
    count: int


_PREFIXES = {"cpu": "cpu", "pcie_switch": "pex", "nvswitch": "nvs", "gpu": "gpu", "nic": "nic"}


class HostNodes(Model):
    """How many nodes of each kind a host has. They are named cpu0.., pex0.., nvs0.., gpu0.., nic0.."""

    cpu: int = Field(ge=1)
    pcie_switch: int = Field(default=0, ge=0)
    nvswitch: int = Field(default=0, ge=0)
    gpu: int = Field(default=0, ge=0)
    nic: int = Field(ge=1)

    def names(self, kind: str) -> tuple[str, ...]:
        return tuple(f"{_PREFIXES[kind]}{i}" for i in range(getattr(self, kind)))


class Host(Entry):
    """A host: its nodes and one list of links between them."""

    gpu: str = ""
    chips: dict[Literal["cpu", "pcie_switch", "nvswitch"], str]
    nodes: HostNodes
    nics: tuple[HostNic, ...]
    links: tuple[HostLinks, ...]

    @field_validator("nics", "links", mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        return repeated(value)

    @model_validator(mode="after")
    def _consistent(self) -> Host:
        if len(self.nics) != self.nodes.nic:
            raise ValueError(f"got {len(self.nics)} nics, expected {self.nodes.nic} as nodes.nic says")
        if len({nic.hca for nic in self.nics}) != len(self.nics):
            raise ValueError("two nics have the same hca name")
        known = self.node_names
        for number, group in enumerate(self.links):
            for node in (*group.a, *group.b):
                if node not in known:
                    raise ValueError(f"links[{number}] got node {node!r}{did_you_mean(node, known)}")
            if set(group.a) & set(group.b):
                raise ValueError(f"links[{number}] joins a node to itself")
        for nic in self.nics:
            if self.nodes.gpu and not 0 <= nic.rail < self.nodes.gpu:
                raise ValueError(f"{nic.hca} got rail {nic.rail}, expected a GPU from 0 to {self.nodes.gpu - 1}")
        return self

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """Every node: processors, PCIe switches, NVSwitches, GPUs, NICs."""
        return tuple(name for kind in _PREFIXES for name in self.nodes.names(kind))

    def kind_of(self, node: str) -> str:
        """`'pex0'` to `'pcie_switch'`. Raises KeyError."""
        prefix = node.rstrip("0123456789")
        return next(kind for kind, p in _PREFIXES.items() if p == prefix)

    @cached_property
    def edges(self) -> tuple[HostEdge, ...]:
        """The links one pair of nodes at a time, in the order of the data file."""
        return tuple(
            HostEdge(a=a, b=b, link=group.link, count=group.count)
            for group in self.links
            for a in group.a
            for b in group.b
        )


def spread(names: Iterable[Any]) -> Iterator[str]:
    """`['gpu0..gpu2', 'nic0']` to gpu0, gpu1, gpu2, nic0. Raises ValueError."""
    for name in names:
        match = re.fullmatch(r"([a-z]+)(\d+)\.\.([a-z]+)(\d+)", str(name))
        if match is None:
            yield str(name)
            continue
        if match[1] != match[3] or int(match[2]) > int(match[4]):
            raise ValueError(f"got {name!r}, expected a range such as 'gpu0..gpu7'")
        yield from (f"{match[1]}{i}" for i in range(int(match[2]), int(match[4]) + 1))


KINDS: dict[str, type[Entry]] = {
    "gpu": Gpu,
    "host": Host,
    "nic": Nic,
    "switch": Switch,
    "nvlink": Nvlink,
    "pcie": Pcie,
    "infiniband": Infiniband,
    "ethernet": Ethernet,
    "headers": Headers,
    "cable": Medium,
    "fabric": FabricPreset,
    "chip": Chip,
    "cpu_link": CpuLink,
    "verbs_device": VerbsDevice,
}


Sourced = Figure[Any] | GemmTable | HostPart


def figures(entry: BaseModel, path: str = "") -> Iterator[tuple[str, Sourced]]:
    """Everything in an entry that carries a source, with its key path."""

    def walk(value: object, at: str) -> Iterator[tuple[str, Sourced]]:
        if isinstance(value, Figure | GemmTable | HostPart):
            yield at, value
        elif isinstance(value, BaseModel):
            yield from figures(value, at)
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from walk(item, f"{at}.{key}")
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                yield from walk(item, f"{at}[{i}]")

    for field in type(entry).model_fields:
        yield from walk(getattr(entry, field), f"{path}.{field}" if path else field)
