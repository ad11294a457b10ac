"""Costs of NCCL's steps beside the wire, by machine and network: latencies that were fitted, and declared.

NCCL's own constants serve its choice and are those of NVIDIA's machines; absolute times differ from fabric to
fabric. `data/step_costs.yaml` holds for each generation of GPUs and kind of network what a step costs, what share
of a wire's rate a protocol gets, and what launching takes; `docs/validation-collectives.md` says which rows each
figure was fitted to. Where nothing was fitted, NCCL's constants stand, less what the twin's wires take by
themselves.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from fabrictwin import catalog
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US
from fabrictwin.cluster.spec.calibration_file import CollectiveCorrections
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol

Three = tuple[float, float, float]  # LL, LL128, Simple
DEVICE = "nccl-tests"  # the caller that keeps the GPU's queue full: times are the device's own


@record
class CostsInside:
    """CostsInside a host, or a rack that is one NVLink domain. Times in µs."""

    launch: float  # a kernel, from its start to its first byte, on all ranks
    ring: Three  # base of a protocol: what is added once
    tree: Three
    ring_hop: Three
    tree_hop: Three
    pcie_hop: Three  # over PCIe or through host memory
    ring_share: Three  # of the NVLinks' kernel rate
    tree_share: Three
    channel_gbps: Three  # GB/s of data that one channel's block moves at most
    nvls: float  # base
    nvls_chunk: float  # a chunk of a head on a channel, beside its bytes
    nvls_share: float
    send: Three  # base of sends
    send_hop: float
    send_share: float
    exchange: Three  # base of an all-to-all, where ranks send and receive at once
    exchange_gbps: Three  # GB/s of data that a channel's block moves to a peer while it receives from one
    exchange_start: float  # until the last of the ranks has started, for each doubling of them
    own: float  # copying a rank's own part, as a share of what sending as much to another takes
    own_reduced: float  # the same of an all-reduce


@record
class CostsBetween:
    """CostsBetween hosts. Times in µs."""

    ring_hop: Three
    tree_hop: Three
    nvls_tree_hop: float
    collnet: float  # base of in-network reduction
    collnet_hop: float
    send_hop: float
    hop: float  # of every step, beside its own: what this network takes longer than InfiniBand
    message: float  # between messages of a connection: what its proxy and the network's library do for one
    base: float  # once, where several hosts take part: meeting, the proxies' start


@record
class StepCosts:
    """The step costs of one communicator."""

    inside: CostsInside
    between: CostsBetween

    def corrected(self, by: CollectiveCorrections | None) -> StepCosts:
        """Return the costs with corrections of one's own; no protocol gets more than the wires' rate."""
        if by is None:
            return self

        def shares(of: Three) -> Three:
            found = [min(1.0, share * by.rate) for share in of]
            return found[0], found[1], found[2]

        def times(of: Three, factor: float) -> Three:
            return of[0] * factor, of[1] * factor, of[2] * factor

        inside, between = self.inside, self.between
        inside = replace(
            inside,
            launch=max(0.0, inside.launch + by.launch_us),
            ring_hop=times(inside.ring_hop, by.hop),
            tree_hop=times(inside.tree_hop, by.hop),
            pcie_hop=times(inside.pcie_hop, by.hop),
            send_hop=inside.send_hop * by.hop,
            ring_share=shares(inside.ring_share),
            tree_share=shares(inside.tree_share),
            channel_gbps=times(inside.channel_gbps, by.rate),
            nvls_share=min(1.0, inside.nvls_share * by.rate),
            send_share=min(1.0, inside.send_share * by.rate),
            exchange_gbps=times(inside.exchange_gbps, by.rate),
        )
        between = replace(
            between,
            ring_hop=times(between.ring_hop, by.hop),
            tree_hop=times(between.tree_hop, by.hop),
            nvls_tree_hop=between.nvls_tree_hop * by.hop,
            collnet_hop=between.collnet_hop * by.hop,
            send_hop=between.send_hop * by.hop,
            hop=between.hop * by.hop,
        )
        return StepCosts(inside, between)

    def base_us(self, algorithm: Algorithm, protocol: Protocol, *, nodes: int) -> float:
        """Time in µs that an operation takes once."""
        own = {
            Algorithm.TREE: self.inside.tree[protocol],
            Algorithm.RING: self.inside.ring[protocol],
            Algorithm.PAT: self.inside.ring[protocol],
            Algorithm.NVLS: self.inside.nvls,
            Algorithm.NVLS_TREE: self.inside.nvls,
            Algorithm.COLLNET_DIRECT: self.between.collnet,
            Algorithm.COLLNET_CHAIN: self.between.collnet,
        }[algorithm]
        return self.inside.launch + own + (self.between.base if nodes > 1 else 0.0)

    def share(
        self, algorithm: Algorithm, protocol: Protocol, own_part: float = 0.0, *, reduced: bool = False
    ) -> float:
        """Share of the wires' rate, where a rank's own part, which it copies, is so much of what it sends."""
        if algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE):
            return self.inside.nvls_share
        found = (self.inside.tree_share if algorithm == Algorithm.TREE else self.inside.ring_share)[protocol]
        own = self.inside.own_reduced if reduced else self.inside.own
        return found / (1 + own * own_part)

    def sends(
        self, protocol: Protocol, *, exchange: bool, nodes: int, ranks: int = 2, own_part: float = 0.0
    ) -> tuple[float, float, float]:
        """(time in µs that sends take once, share of the wires' rate, GB/s of a channel's block)."""
        inside = self.inside
        once = inside.launch + (inside.exchange if exchange else inside.send)[protocol]
        if exchange:
            # a rank is done when the last of all has started: of so many that start by chance, the latest
            once += inside.exchange_start * math.log2(max(ranks, 2) / 2)
        share = inside.send_share / (1 + inside.own * own_part)
        rate = (inside.exchange_gbps if exchange else inside.channel_gbps)[protocol]
        return once + (self.between.base if nodes > 1 else 0.0), share, rate

    def send_hops_us(self, protocol: Protocol) -> dict[str, float]:
        """Time in µs of a send over "nvlink", "pcie" and "net"."""
        net = self.between.hop + self.between.send_hop
        return {"nvlink": self.inside.send_hop, "pcie": self.inside.pcie_hop[protocol], "net": net}

    def hops_us(self, algorithm: Algorithm, protocol: Protocol) -> dict[str, float]:
        """Time in µs of a step over "nvlink", "pcie" and "net"."""
        tree = algorithm in (Algorithm.TREE, Algorithm.COLLNET_CHAIN)
        net = (self.between.tree_hop if tree else self.between.ring_hop)[protocol]
        nvls = algorithm == Algorithm.NVLS_TREE
        return {
            "nvlink": (self.inside.tree_hop if tree else self.inside.ring_hop)[protocol],
            "pcie": self.inside.pcie_hop[protocol],
            "net": self.between.hop + (self.between.nvls_tree_hop if nvls else net),
        }


@record
class Calibration:
    """All fitted figures, by generation of GPUs and kind of network."""

    inside: dict[str, CostsInside]
    between: dict[str, CostsBetween]
    callers: dict[str, tuple[float, float]]  # µs that a caller's own code adds in one host, and over several

    def of(self, communicator: Communicator, caller: str = DEVICE) -> StepCosts:
        """The step costs of a communicator, as one of `callers` measures them."""
        machine = machine_of(communicator)
        pair = f"{network_of(communicator)}-{machine}"
        inside = self.inside[machine]
        inside = replace(inside, launch=inside.launch + self.callers[caller][communicator.nodes > 1])
        return StepCosts(inside, self.between.get(pair, self.between["default"]))


def machine_of(communicator: Communicator) -> str:
    """The generation of its GPUs."""
    capability = communicator.compute_capability
    if capability >= 100:
        return "blackwell"
    return "hopper" if capability >= 90 else "ampere"


def network_of(communicator: Communicator) -> str:
    """The kind of its network: infiniband, roce or srd."""
    fabric = communicator.twin.fabric
    if fabric.technology == "infiniband":
        return "infiniband"
    return "srd" if sprays(fabric) else "roce"


def sprays(fabric: Fabric) -> bool:
    """Return true if its adapters spread the packets of a connection over paths (SRD)."""
    kinds = {name for template in fabric.templates for name in template.nic_types if name}
    return any(catalog.nic(name).transport == "srd" for name in kinds)


def _section(kind: type[Any], data: dict[str, Any], base: Any) -> Any:
    values = {key: tuple(value) if isinstance(value, list) else float(value) for key, value in data.items()}
    return kind(**values) if base is None else replace(base, **values)


@cache
def calibration() -> Calibration:
    """The figures of `data/step_costs.yaml`."""
    text = files("fabrictwin.nccl").joinpath("data/step_costs.yaml").read_text(encoding="utf-8")
    data = yaml.load(text, Loader=yaml.CSafeLoader)
    found: dict[str, dict[str, Any]] = {}
    for part, kind in (("inside", CostsInside), ("between", CostsBetween)):
        base = _section(kind, data[part].pop("default"), None)
        found[part] = {"default": base}
        fitted = data[part]
        for name, entry in fitted.items():
            found[part][name] = _section(kind, entry, base)
    callers = {name: (float(one), float(several)) for name, (one, several) in data["callers"].items()}
    return Calibration(found["inside"], found["between"], callers)


def picoseconds(us: float) -> int:
    """Microseconds, rounded."""
    return round(us * PS_PER_US)
