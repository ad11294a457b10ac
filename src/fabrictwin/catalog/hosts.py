"""Hosts and the chips inside: nodes, adapters, and one list of links between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fabrictwin.base.errors import did_you_mean, quoted
from fabrictwin.base.units import Duration, Rate
from fabrictwin.base.whole_numbers import numbered, whole_or_none
from fabrictwin.catalog.figures import Entry, Figure, Model, SourcedPart
from fabrictwin.catalog.quantities import Count

MOST_NODES = 1024  # of a kind in one host
MOST_LINKS = 1 << 17


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
    copies; `tcp_read` is what a thread reads whose packets another core takes in. `idle_exit` is what a core
    needs to come back from the deepest state that Linux lets it idle in. `ordered_write` is what an adapter of its
    hosts writes to a GPU's memory where its writes must keep their order, if that is less than its link.
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
    idle_exit: Figure[Duration] | None = None
    ordered_write: Figure[Rate] | None = None


class HostNic(SourcedPart):
    """One adapter of a host. `rail` is the GPU that it serves."""

    type: str
    hca: str
    rail: int


class HostLinks(SourcedPart):
    """Links between every node of `a` and every node of `b`: `count` of them between each pair."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    link: str
    count: int = Field(default=1, ge=1, le=MOST_NODES)

    @field_validator("a", "b", mode="before")
    @classmethod
    def _spread(cls, value: Any) -> Any:
        return tuple(spread(value)) if isinstance(value, list) else value


class HostEdge(Model):
    """`count` parallel links of one type between two nodes of a host."""

    a: str
    b: str
    link: str
    count: int


_PREFIXES = {"cpu": "cpu", "pcie_switch": "pex", "nvswitch": "nvs", "gpu": "gpu", "nic": "nic"}


class HostNodes(Model):
    """How many nodes of each kind a host has. They are named cpu0.., pex0.., nvs0.., gpu0.., nic0.."""

    cpu: int = Field(ge=1, le=MOST_NODES)
    pcie_switch: int = Field(default=0, ge=0, le=MOST_NODES)
    nvswitch: int = Field(default=0, ge=0, le=MOST_NODES)
    gpu: int = Field(default=0, ge=0, le=MOST_NODES)
    nic: int = Field(ge=1, le=MOST_NODES)

    def names(self, kind: str) -> tuple[str, ...]:
        return tuple(f"{_PREFIXES[kind]}{i}" for i in range(getattr(self, kind)))


class Host(Entry):
    """A host: its nodes and one list of links between them."""

    gpu: str = ""
    chips: dict[Literal["cpu", "pcie_switch", "nvswitch"], str]
    nodes: HostNodes
    nics: tuple[HostNic, ...]
    links: tuple[HostLinks, ...]
    trays: int = Field(default=1, ge=1)  # into which adapters fall in order; each has its own rails

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
        if len(self.nics) % self.trays:
            raise ValueError(f"got {self.trays} trays, expected a divisor of {len(self.nics)} nics")
        if sum(len(group.a) * len(group.b) for group in self.links) > MOST_LINKS:
            raise ValueError(f"got links between more than {MOST_LINKS} pairs of nodes")
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
        if not isinstance(times, int) or not 1 <= times <= MOST_NODES or not _are_steps(step):
            raise ValueError(
                f"got times {quoted(times)} and step {quoted(step)}, "
                f"expected a number up to {MOST_NODES} and steps by kind of node"
            )
        ends = {end: _names(item, end) for end in ("a", "b") if end in item}
        if len(result) + times * (1 + sum(map(len, ends.values()))) > MOST_LINKS:
            raise ValueError(f"got more than {MOST_LINKS} nodes and links spelled out")
        result += [_shifted(item, ends, i, step) for i in range(times)]
    return result


def _are_steps(step: object) -> bool:
    return isinstance(step, dict) and all(isinstance(by, int) and abs(by) <= MOST_NODES for by in step.values())


def _names(item: dict[str, Any], end: str) -> list[str]:
    if not isinstance(item[end], list):
        raise ValueError(f"got {end} {quoted(item[end])}, expected a list of nodes")
    return list(spread(item[end]))


def _shifted(item: dict[str, Any], ends: dict[str, list[str]], i: int, step: dict[str, int]) -> dict[str, Any]:
    def move(name: object, by: int) -> str:
        found = re.fullmatch(r"(.*?)(\d{1,9})", name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"got {quoted(name)}, expected a name that ends with a number")
        return f"{found[1]}{int(found[2]) + by}"

    if "hca" in item:
        rail = item.get("rail")
        return {**item, "hca": move(item["hca"], i), "rail": rail + i if isinstance(rail, int) else rail}
    return item | {
        end: [move(name, i * step.get(name.rstrip("0123456789"), 1)) for name in names]
        for end, names in ends.items()
    }


def spread(names: Iterable[Any]) -> Iterator[str]:
    """`['gpu0..gpu2', 'nic0']` to gpu0, gpu1, gpu2, nic0. Raises ValueError."""
    for name in names:
        match = re.fullmatch(r"([a-z]+)(\d+)\.\.([a-z]+)(\d+)", name) if isinstance(name, str) else None
        if match is None:
            yield name if isinstance(name, str) else quoted(name)
            continue
        first, last = (whole_or_none(match[side], most=MOST_NODES - 1) for side in (2, 4))
        if match[1] != match[3] or first is None or last is None or first > last:
            raise ValueError(
                f"got {quoted(name)}, expected a range such as 'gpu0..gpu7' with numbers below {MOST_NODES}"
            )
        yield from numbered(match[1], first, last, most=MOST_NODES)
