"""The inside of a host, compiled once for each kind of host and copied for each host.

A template holds the local graph (GPUs, NVSwitches, PCIe switches, CPUs, NICs and the links between them) and
the paths inside it. GPUs reach each other over NVLink where they have it, spread over the NVSwitches in
proportion to their links as address hashing does; everything else goes over PCIe, which GPUs and NICs end and
switches and CPUs pass on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I8, I32, I64
from fabrictwin.base.records import record
from fabrictwin.fabric.kinds import LinkKind, NodeKind
from fabrictwin.kernel.codes import NONE

_NODE_KIND = {
    "gpu": NodeKind.GPU,
    "nvswitch": NodeKind.NVSWITCH,
    "pcie_switch": NodeKind.PCIE_SWITCH,
    "cpu": NodeKind.CPU,
    "nic": NodeKind.NIC,
}
_LINK_KIND = {"nvlink": LinkKind.NVLINK, "pcie": LinkKind.PCIE, "cpu": LinkKind.CPU}
_PASSES_PCIE = (NodeKind.PCIE_SWITCH, NodeKind.CPU)


@record
class Paths:
    """Every path inside a host, as a CSR. n local nodes.

    Alternatives `pair_start[a * n + b] .. pair_start[a * n + b + 1]` lead from a to b; alternative i has the
    share `share[i]` of the traffic and transmits on local ports `ports[hop_start[i]:hop_start[i + 1]]`.
    """

    pair_start: I32
    share: np.ndarray
    hop_start: I32
    ports: I32


@record
class HostTemplate:
    """One kind of host as arrays with local indices; columns as in `Fabric`. NIC nodes carry device names."""

    type: str  # catalog name, '' for adapters without a known host
    gpu_type: str
    node_names: tuple[str, ...]
    node_kind: I8
    node_type: tuple[str, ...]  # catalog name of each node
    node_latency_ps: I64
    node_port_start: I32
    port_node: I32
    port_peer: I32  # local; NONE for network ports
    port_kind: I8
    port_rate_bps: I64
    port_payload_bps: I64
    port_latency_ps: I64
    gpus: I32  # local nodes
    nics: I32  # local nodes
    nic_types: tuple[str, ...]
    nic_network_port: I32  # local port of each NIC's network side
    nic_rail: I32  # the GPU that each NIC serves
    paths: Paths

    @cached_property
    def adapters(self) -> I32:
        """[local nodes, NICs] for each GPU and CPU the NICs it can use, best first; NONE fills up.

        Best is the NIC that names the GPU as its rail, then the nearest over PCIe, ties by index.
        """
        n = len(self.node_kind)
        result = np.full((n, len(self.nics)), NONE, np.int32)
        for node in np.flatnonzero(np.isin(self.node_kind, (NodeKind.GPU, NodeKind.CPU))):
            gpu = np.flatnonzero(self.gpus == node)
            ranked = []
            for k, nic in enumerate(self.nics):
                i = self.paths.pair_start[node * n + nic]
                if i < self.paths.pair_start[node * n + nic + 1]:
                    serves = bool(len(gpu)) and self.nic_rail[k] == gpu[0]
                    ranked.append((not serves, int(self.paths.hop_start[i + 1] - self.paths.hop_start[i]), k))
            result[node, : len(ranked)] = [k for _, _, k in sorted(ranked)]
        return result


@dataclass
class _Link:
    a: int
    b: int
    kind: LinkKind
    rate_bps: int
    payload_bps: int
    latency_ps: int


def _before(
    start: int, out: list[list[tuple[int, int]]], kinds: I8, passes: tuple[NodeKind, ...]
) -> dict[int, list[tuple[int, int]]]:
    """Return what comes before each node on shortest paths from `start` through `passes`, as (port, node)."""
    distance = {start: 0}
    before: dict[int, list[tuple[int, int]]] = {start: []}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if node != start and kinds[node] not in passes:
            continue
        for port, neighbour in out[node]:
            if neighbour not in distance:
                distance[neighbour] = distance[node] + 1
                before[neighbour] = []
                queue.append(neighbour)
            if distance[neighbour] == distance[node] + 1:
                before[neighbour].append((port, node))
    return before


def _shortest(start: int, end: int, before: dict[int, list[tuple[int, int]]]) -> list[list[int]]:
    """All shortest paths from `start` to `end` as lists of ports, in order of ports."""

    def back(node: int) -> list[list[int]]:
        if node == start:
            return [[]]
        return [[*path, port] for port, previous in before.get(node, ()) for path in back(previous)]

    return sorted(back(end))


Alternatives = list[tuple[float, list[int]]]  # ways from one node to another: share of the bytes, ports


def _paths(kinds: I8, links: list[_Link], ports: list[tuple[int, int]], port_links: list[int]) -> Paths:
    """Paths between all GPUs, CPUs and NICs. `ports[p]` is (node, peer node), `port_links[p]` its link."""
    n = len(kinds)
    over: dict[str, list[list[tuple[int, int]]]] = {
        "nvlink": [[] for _ in range(n)],
        "pcie": [[] for _ in range(n)],
    }
    for port, (node, peer) in enumerate(ports):
        if peer == NONE:
            continue
        kind = links[port_links[port]].kind
        over["nvlink" if kind == LinkKind.NVLINK else "pcie"][node].append((port, peer))
    ends = [i for i in range(n) if kinds[i] in (NodeKind.GPU, NodeKind.CPU, NodeKind.NIC)]
    pairs: list[Alternatives] = []
    for a in range(n):
        if a in ends:
            nvlink = _before(a, over["nvlink"], kinds, (NodeKind.NVSWITCH,))
            pcie = _before(a, over["pcie"], kinds, _PASSES_PCIE)
        for b in range(n):
            alternatives: Alternatives = []
            if a != b and a in ends and b in ends:
                if kinds[a] == kinds[b] == NodeKind.GPU:
                    found = _shortest(a, b, nvlink)
                    weight = [min(links[port_links[p]].rate_bps for p in path) for path in found]
                    alternatives = [(w / sum(weight), path) for w, path in zip(weight, found, strict=True)]
                if not alternatives:
                    # PCIe routes by address: one path, the first
                    alternatives = [(1.0, path) for path in _shortest(a, b, pcie)[:1]]
            pairs.append(alternatives)
    return _packed(pairs)


def _packed(pairs: list[Alternatives]) -> Paths:
    """Paths as columns, pair after pair."""
    found = [path for alternatives in pairs for path in alternatives]
    return Paths(
        np.cumsum([0, *(len(alternatives) for alternatives in pairs)], dtype=np.int32),
        np.array([part for part, _ in found], np.float64),
        np.cumsum([0, *(len(ports) for _, ports in found)], dtype=np.int32),
        np.array([port for _, ports in found for port in ports], np.int32),
    )


def with_access_control(template: HostTemplate) -> HostTemplate:
    """The template with access control services (ACS) on its PCIe switches.

    They redirect what peers below them send each other up to the root complex, which sends it down again (PCI
    Express 5.0, 6.12.1, P2P Request Redirect and Completion Redirect). NVLink and paths through a CPU stay.
    """
    n, paths = len(template.node_kind), template.paths
    cpus = np.flatnonzero(template.node_kind == NodeKind.CPU).tolist()
    pairs: list[Alternatives] = []

    def alternatives(a: int, b: int) -> Alternatives:
        found = range(int(paths.pair_start[a * n + b]), int(paths.pair_start[a * n + b + 1]))
        return [(paths.share[i], paths.ports[paths.hop_start[i] : paths.hop_start[i + 1]].tolist()) for i in found]

    def turns_below(ports: list[int]) -> bool:
        passed = template.node_kind[template.port_node[ports[1:]]]
        return NodeKind.PCIE_SWITCH in passed and NodeKind.CPU not in passed

    for a in range(n):
        for b in range(n):
            pairs.append([])
            for part, ports in alternatives(a, b):
                if NodeKind.CPU not in template.node_kind[[a, b]] and turns_below(ports):
                    over = [(alternatives(a, cpu), alternatives(cpu, b)) for cpu in cpus]
                    ports = min(
                        (up[0][1] + down[0][1] for up, down in over if up and down), key=len, default=ports
                    )
                pairs[-1].append((part, ports))
    return replace(template, paths=_packed(pairs))


@dataclass
class _Nodes:
    """The local nodes of a host and the links between them. NICs are named after their devices."""

    gpu_type: str
    names: list[str]
    kinds: list[str]
    types: list[str]
    latency_ps: list[int]
    nics: list[int]  # local nodes
    nic_types: tuple[str, ...]
    nic_rails: list[int]
    links: list[_Link]


def _catalog_host(host_type: str, nic_names: tuple[str, ...]) -> _Nodes:
    """Nodes and links of a catalog host. Raises ConfigError for one that the catalog does not know."""
    host = catalog.host(host_type)
    names = list(host.node_names)
    index = {name: i for i, name in enumerate(names)}
    kinds = [host.kind_of(name) for name in names]
    nic_types = tuple(nic.type for nic in host.nics)
    chips = {kind: catalog.chip(chip) for kind, chip in host.chips.items()}
    links = []
    for edge in host.edges:
        wire = catalog.link(edge.link)
        links.append(
            _Link(
                index[edge.a],
                index[edge.b],
                _LINK_KIND[wire.kind],
                wire.rate_bps * edge.count,
                wire.payload_rate_bps * edge.count,
                wire.latency_ps,
            )
        )
    types = [
        host.chips.get(kind, "") if kind in host.chips else (host.gpu if kind == "gpu" else "") for kind in kinds
    ]
    nics = [i for i, kind in enumerate(kinds) if kind == "nic"]
    for k, i in enumerate(nics):
        names[i] = nic_names[k]
        types[i] = nic_types[k]
    return _Nodes(
        gpu_type=host.gpu,
        names=names,
        kinds=kinds,
        types=types,
        latency_ps=[chips[kind].latency.value if kind in chips else 0 for kind in kinds],
        nics=nics,
        nic_types=nic_types,
        nic_rails=[nic.rail if host.nodes.gpu else NONE for nic in host.nics],
        links=links,
    )


def _adapters_alone(nic_names: tuple[str, ...]) -> _Nodes:
    """Adapters without a host around them."""
    count = len(nic_names)
    return _Nodes(
        gpu_type="",
        names=list(nic_names),
        kinds=["nic"] * count,
        types=[""] * count,
        latency_ps=[0] * count,
        nics=list(range(count)),
        nic_types=("",) * count,
        nic_rails=[NONE] * count,
        links=[],
    )


class _Ports:
    """Local ports node by node: its links in the host's order, then a NIC's network port."""

    def __init__(self, nodes: _Nodes) -> None:
        self.ends: list[tuple[int, int]] = []  # (node, the node behind it); NONE behind network ports
        self.links: list[int] = []  # NONE of network ports
        self.start = [0]
        self.network: list[int] = []  # of each NIC
        end_port: dict[tuple[int, int], int] = {}
        for node in range(len(nodes.names)):
            for number, link in enumerate(nodes.links):
                for near, far in ((link.a, link.b), (link.b, link.a)):
                    if near == node:
                        end_port[number, node] = len(self.ends)
                        self.ends.append((node, far))
                        self.links.append(number)
            if node in nodes.nics:
                self.network.append(len(self.ends))
                self.ends.append((node, NONE))
                self.links.append(NONE)
            self.start.append(len(self.ends))
        self.peers = [
            NONE if link == NONE else end_port[link, far]
            for (_, far), link in zip(self.ends, self.links, strict=True)
        ]


@cache
def host_template(host_type: str, nic_names: tuple[str, ...]) -> HostTemplate:
    """The template of a catalog host; with an empty type, of that many adapters without a host around them.

    Raises ConfigError for a host that the catalog does not know.
    """
    nodes = _catalog_host(host_type, nic_names) if host_type else _adapters_alone(nic_names)
    ports, links = _Ports(nodes), nodes.links
    kinds = np.array([_NODE_KIND[kind] for kind in nodes.kinds], np.int8)

    def column(field: str) -> list[int]:
        return [0 if link == NONE else int(getattr(links[link], field)) for link in ports.links]

    return HostTemplate(
        type=host_type,
        gpu_type=nodes.gpu_type,
        node_names=tuple(nodes.names),
        node_kind=kinds,
        node_type=tuple(nodes.types),
        node_latency_ps=np.array(nodes.latency_ps, np.int64),
        node_port_start=np.array(ports.start, np.int32),
        port_node=np.array([node for node, _ in ports.ends], np.int32),
        port_peer=np.array(ports.peers, np.int32),
        port_kind=np.array([NONE if link == NONE else links[link].kind for link in ports.links], np.int8),
        port_rate_bps=np.array(column("rate_bps"), np.int64),
        port_payload_bps=np.array(column("payload_bps"), np.int64),
        port_latency_ps=np.array(column("latency_ps"), np.int64),
        gpus=np.flatnonzero(kinds == NodeKind.GPU).astype(np.int32),
        nics=np.array(nodes.nics, np.int32),
        nic_types=nodes.nic_types,
        nic_network_port=np.array(ports.network, np.int32),
        nic_rail=np.array(nodes.nic_rails, np.int32),
        paths=_paths(kinds, links, ports.ends, ports.links),
    )
