"""The twin of a spec: its fabric, routed as the spec says, its dead and slow links, what is wrong with hosts."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

from fabrictwin.base.errors import did_you_mean
from fabrictwin.base.units import PS_PER_NS
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.faults import find_faults, host_causes
from fabrictwin.cluster.names import split_jack
from fabrictwin.cluster.spec.cluster_section import GeneratedCluster
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.routing.engines.routing_options import DATA_VLS, Options, parse_guid
from fabrictwin.routing.tables import DEFAULT_HASH
from fabrictwin.twin.twin import Twin

_OF_INFINIBAND = (
    "roots", "weights", "lmc", "lanes", "guid_routing_order", "scatter_ports", "cn_guids", "io_guids"
)  # fmt: skip


def make_twin(spec: Spec, blueprint: Blueprint) -> Twin:
    """The twin of a blueprint as the spec routes it, with the spec's dead and slow links."""
    routing = spec.cluster.routing
    cables, _ = find_faults(blueprint, spec)
    dead = tuple(sorted(fault.cable for fault in cables if fault.rate_bps == 0))
    twin = Twin(
        blueprint,
        engine=engine_of(spec),
        hash_name=DEFAULT_HASH if routing.hash == "default" else routing.hash,
        seed=routing.seed,
        dead=dead,
    )
    twin.afflict(host_causes(blueprint, spec))
    measured = None if spec.calibration is None else spec.calibration.adapters
    if measured is not None:
        twin.correct(latency_ps=round(measured.latency_ns * PS_PER_NS), message_rate=measured.message_rate)
    twin.options = routing_options(spec, twin.fabric)
    twin.congestion = getattr(spec.cluster, "congestion_control", None)
    twin.spread = spec.run.packet is not None and spec.run.packet.balance in ("adaptive", "spray")
    for fault in cables:
        if fault.rate_bps > 0:
            twin.degrade(twin.cable_now(fault.cable), fault.rate_bps)
    return twin


def routing_key(spec: Spec, key: str) -> str:
    """Full name of a key of `routing`: only a generated cluster keeps it under `network`."""
    return f"cluster.{'network.' if isinstance(spec.cluster, GeneratedCluster) else ''}routing.{key}"


def engine_of(spec: Spec) -> str:
    """The routing engine that a spec names."""
    engine = spec.cluster.routing.engine
    return "auto" if engine == "default" else engine


def routing_options(spec: Spec, fabric: Fabric) -> Options:
    """The options of a spec's `routing`, names as GUIDs. Raises ConfigError."""
    routing = spec.cluster.routing
    given = [key for key in _OF_INFINIBAND if getattr(routing, key)]
    if given and fabric.technology != "infiniband":
        message = f"got {given[0]} on ethernet, expected it only on InfiniBand"
        raise spec.error(routing_key(spec, given[0]), message)
    nodes = {fabric.node_name(int(node)): int(node) for node in fabric.switch_nodes}
    roots: list[int] = []
    for i, name in enumerate(routing.roots):
        found = [int(fabric.node_guid[nodes[known]]) for known in nodes if fnmatchcase(known, name)]
        if not found and name[:2].lower() == "0x":
            found = [_guid(spec, name, i)]
        if not found:
            hint = did_you_mean(name, nodes)
            message = f"got {name!r}, expected a switch of the cluster, a glob or a GUID{hint}"
            raise spec.error(routing_key(spec, f"roots[{i}]"), message)
        roots += found
    weights: dict[tuple[int, int], int] = {}
    for jack, weight in routing.weights.items():
        try:
            name, port = split_jack(jack)
        except ValueError as error:
            raise spec.error(routing_key(spec, "weights"), str(error)) from None
        if name not in nodes:
            hint = did_you_mean(name, nodes)
            message = f"got {jack!r}, expected a port of a switch, such as 'leaf-0/3'{hint}"
            raise spec.error(routing_key(spec, "weights"), message)
        ports = int(np.diff(fabric.node_port_start)[nodes[name]])
        if not port.isdecimal() or not 1 <= int(port) <= ports:
            message = f"got {jack!r}, expected a port of {name} from 1 to {ports}"
            raise spec.error(routing_key(spec, "weights"), message)
        weights[int(fabric.node_guid[nodes[name]]), int(port)] = weight
    return Options(
        roots=tuple(dict.fromkeys(roots)),
        weights=weights,
        lmc=routing.lmc,
        lanes=routing.lanes or DATA_VLS,
        order=_port_guids(spec, fabric, "guid_routing_order", switches=True),
        scatter=routing.scatter_ports,
        compute=_port_guids(spec, fabric, "cn_guids"),
        storage=_port_guids(spec, fabric, "io_guids"),
    )


def _port_guids(spec: Spec, fabric: Fabric, key: str, *, switches: bool = False) -> tuple[int, ...]:
    """Port GUIDs of the nodes that a list of names, globs and GUIDs means, in its order. Raises ConfigError."""
    names: tuple[str, ...] = getattr(spec.cluster.routing, key)
    if not names:
        return ()
    nodes = np.concatenate([fabric.nic_node, fabric.switch_nodes]) if switches else fabric.nic_node
    known = {fabric.node_name(int(node)): int(fabric.port_guid[node]) for node in nodes}
    guids: list[int] = []
    for i, name in enumerate(names):
        found = [guid for node, guid in known.items() if fnmatchcase(node, name)]
        if not found and name[:2].lower() == "0x":
            found = [_guid(spec, name, i, key)]
        if not found:
            hint = did_you_mean(name, known)
            message = f"got {name!r}, expected an adapter of the cluster, a glob or a port GUID{hint}"
            raise spec.error(routing_key(spec, f"{key}[{i}]"), message)
        guids += found
    return tuple(dict.fromkeys(guids))


def _guid(spec: Spec, name: str, index: int, key: str = "roots") -> int:
    try:
        return parse_guid(name)
    except ValueError:
        message = f"got {name!r}, expected a GUID, such as 0x0c42a103002559fe"
        raise spec.error(routing_key(spec, f"{key}[{index}]"), message) from None
