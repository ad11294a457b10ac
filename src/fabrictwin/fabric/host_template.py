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
from fabrictwin.fabric.kinds import I8, I32, I64, LinkKind, NodeKind
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


@dataclass(frozen=True)
class Paths:
    """Every path inside a host, as a CSR. n local nodes.

    Alternatives `pair_start[a * n + b] .. pair_start[a * n + b + 1]` lead from a to b; alternative i has the
    share `share[i]` of the traffic and transmits on local ports `ports[hop_start[i]:hop_start[i + 1]]`.
    """

    pair_start: I32
    share: np.ndarray
    hop_start: I32
    ports: I32


@dataclass(frozen=True)
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
    pair_start, share, hop_start, hops = [0], [], [0], []
    for a in range(n):
        if a in ends:
            nvlink = _before(a, over["nvlink"], kinds, (NodeKind.NVSWITCH,))
            pcie = _before(a, over["pcie"], kinds, _PASSES_PCIE)
        for b in range(n):
            alternatives: list[tuple[float, list[int]]] = []
            if a != b and a in ends and b in ends:
                if kinds[a] == kinds[b] == NodeKind.GPU:
                    found = _shortest(a, b, nvlink)
                    weight = [min(links[port_links[p]].rate_bps for p in path) for path in found]
                    alternatives = [(w / sum(weight), path) for w, path in zip(weight, found, strict=True)]
                if not alternatives:
                    # PCIe routes by address: one path, the first
                    alternatives = [(1.0, path) for path in _shortest(a, b, pcie)[:1]]
            for part, path in alternatives:
                share.append(part)
                hops.extend(path)
                hop_start.append(len(hops))
            pair_start.append(len(share))
    return Paths(
        np.array(pair_start, np.int32),
        np.array(share, np.float64),
        np.array(hop_start, np.int32),
        np.array(hops, np.int32),
    )


def with_access_control(template: HostTemplate) -> HostTemplate:
    """The template with access control services (ACS) on its PCIe switches.

    They redirect what peers below them send each other up to the root complex, which sends it down again (PCI
    Express 5.0, 6.12.1, P2P Request Redirect and Completion Redirect). NVLink and paths through a CPU stay.
    """
    n, paths = len(template.node_kind), template.paths
    cpus = np.flatnonzero(template.node_kind == NodeKind.CPU).tolist()
    pair_start, share, hop_start, hops = [0], [], [0], []

    def alternatives(a: int, b: int) -> list[tuple[float, list[int]]]:
        found = range(int(paths.pair_start[a * n + b]), int(paths.pair_start[a * n + b + 1]))
        return [(paths.share[i], paths.ports[paths.hop_start[i] : paths.hop_start[i + 1]].tolist()) for i in found]

    def turns_below(ports: list[int]) -> bool:
        passed = template.node_kind[template.port_node[ports[1:]]]
        return NodeKind.PCIE_SWITCH in passed and NodeKind.CPU not in passed

    for a in range(n):
        for b in range(n):
            for part, ports in alternatives(a, b):
                if NodeKind.CPU not in template.node_kind[[a, b]] and turns_below(ports):
                    over = [(alternatives(a, cpu), alternatives(cpu, b)) for cpu in cpus]
                    ports = min(
                        (up[0][1] + down[0][1] for up, down in over if up and down), key=len, default=ports
                    )
                share.append(part)
                hops.extend(ports)
                hop_start.append(len(hops))
            pair_start.append(len(share))
    return replace(
        template,
        paths=Paths(
            np.array(pair_start, np.int32),
            np.array(share, np.float64),
            np.array(hop_start, np.int32),
            np.array(hops, np.int32),
        ),
    )


@cache
def host_template(host_type: str, nic_names: tuple[str, ...]) -> HostTemplate:
    """The template of a catalog host; with an empty type, of that many adapters without a host around them.

    Raises ConfigError for a host that the catalog does not know.
    """
    links: list[_Link] = []
    if host_type:
        host = catalog.host(host_type)
        names = list(host.node_names)
        index = {name: i for i, name in enumerate(names)}
        kind_names = [host.kind_of(name) for name in names]
        nic_types = tuple(nic.type for nic in host.nics)
        rails = [nic.rail if host.nodes.gpu else NONE for nic in host.nics]
        gpu_type = host.gpu
        chips = {kind: catalog.chip(chip) for kind, chip in host.chips.items()}
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
        latency = [chips[kind].latency.value if kind in chips else 0 for kind in kind_names]
        types = [
            host.chips.get(kind, "") if kind in host.chips else (gpu_type if kind == "gpu" else "")
            for kind in kind_names
        ]
        nic_nodes = [i for i, kind in enumerate(kind_names) if kind == "nic"]
        for k, i in enumerate(nic_nodes):
            names[i] = nic_names[k]
            types[i] = nic_types[k]
    else:
        gpu_type = ""
        names = list(nic_names)
        kind_names = ["nic"] * len(names)
        nic_types = ("",) * len(names)
        rails = [NONE] * len(names)
        latency = [0] * len(names)
        types = [""] * len(names)
        nic_nodes = list(range(len(names)))

    # ports node by node: host links in order, then a NIC's network port
    ports: list[tuple[int, int]] = []
    port_links: list[int] = []
    port_start = [0]
    network_port = []
    end_port: dict[tuple[int, int], int] = {}
    for node in range(len(names)):
        for number, link in enumerate(links):
            for near, far in ((link.a, link.b), (link.b, link.a)):
                if near == node:
                    end_port[number, node] = len(ports)
                    ports.append((node, far))
                    port_links.append(number)
        if node in nic_nodes:
            network_port.append(len(ports))
            ports.append((node, NONE))
            port_links.append(NONE)
        port_start.append(len(ports))
    peer = [
        NONE if link == NONE else end_port[link, far] for (_, far), link in zip(ports, port_links, strict=True)
    ]
    kinds = np.array([_NODE_KIND[kind] for kind in kind_names], np.int8)

    def column(field: str) -> list[int]:
        return [0 if link == NONE else int(getattr(links[link], field)) for link in port_links]

    return HostTemplate(
        type=host_type,
        gpu_type=gpu_type,
        node_names=tuple(names),
        node_kind=kinds,
        node_type=tuple(types),
        node_latency_ps=np.array(latency, np.int64),
        node_port_start=np.array(port_start, np.int32),
        port_node=np.array([node for node, _ in ports], np.int32),
        port_peer=np.array(peer, np.int32),
        port_kind=np.array([NONE if link == NONE else links[link].kind for link in port_links], np.int8),
        port_rate_bps=np.array(column("rate_bps"), np.int64),
        port_payload_bps=np.array(column("payload_bps"), np.int64),
        port_latency_ps=np.array(column("latency_ps"), np.int64),
        gpus=np.flatnonzero(kinds == NodeKind.GPU).astype(np.int32),
        nics=np.array(nic_nodes, np.int32),
        nic_types=nic_types,
        nic_network_port=np.array(network_port, np.int32),
        nic_rail=np.array(rails, np.int32),
        paths=_paths(kinds, links, ports, port_links),
    )
