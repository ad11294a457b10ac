"""`network.qos.ports` of a cluster for a cut of it, whose switches are fewer and whose ports have other numbers.

Ports are alike by what they join: an adapter's, a leaf's down to hosts, a leaf's up, and so on by tiers. A port of
the cut has the rows of the cluster's ports of its kind. Where those differ among themselves nobody can say which
the cut's are: that is an error.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.qos_section import Qos, QosPort
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.packet.network.qos_rows import matching_ports, port_names
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind

Kind = tuple[int, int]  # tiers of a port's node and of its peer's; adapters are tier 0
Rows = tuple[QosPort, ...]
KEY = "cluster.network.qos.ports"
_TIERS = 16


def qos_of_cut(spec: Spec, cut: Fabric) -> Qos | None:
    """Return `network.qos` with rows for a cut's ports; as it is where it has none. Raises ConfigError."""
    qos = spec.qos
    if qos is None or not qos.ports:
        return qos
    rows = _rows_of_kinds(compile_fabric(build(spec.cluster, spec=spec)), qos)
    names = port_names(cut)
    ports: dict[Kind, list[str]] = {}
    for port, kind in _kinds(cut).items():
        ports.setdefault(kind, []).append(names[port])
    made: list[QosPort] = []
    for kind, mine in ports.items():
        found = rows.get(_nearest(kind, rows))
        if found is None:
            raise ConfigError(f"got no row for ports such as {mine[0]}, expected one for the cut's", key=KEY)
        made += [row.model_copy(update={"ports": tuple(mine)}) for row in found]
    return qos.model_copy(update={"ports": tuple(made)})


def _rows_of_kinds(fabric: Fabric, qos: Qos) -> dict[Kind, Rows]:
    """Rows by kind of port, without their names. Raises ConfigError where ports of a kind differ."""
    names = port_names(fabric)
    of_port: dict[int, list[QosPort]] = {}
    for index, row in enumerate(qos.ports):
        bare = row.model_copy(update={"ports": ()})
        mine_of_row = matching_ports(row, names)
        if not mine_of_row:
            said = ", ".join(row.ports[:3])
            raise ConfigError(f"got {said}, which no port's name matches", key=f"{KEY}[{index}].ports")
        for port in mine_of_row:
            of_port.setdefault(port, []).append(bare)
    rows: dict[Kind, Rows] = {}
    first: dict[Kind, int] = {}
    for port, kind in _kinds(fabric).items():
        mine = tuple(of_port.get(port, ()))
        if rows.setdefault(kind, mine) != mine:
            one = names[first[kind]]
            raise ConfigError(
                f"got rows for {one} and {names[port]} that differ, expected the same for ports that join the "
                f"same: a cut of the cluster is played, which has other ports",
                key=KEY,
            )
        first.setdefault(kind, port)
    return rows


def _kinds(fabric: Fabric) -> dict[int, Kind]:
    """Kinds of the network's ports that have a cable, by port."""
    network = np.flatnonzero(np.isin(fabric.port_kind, NETWORK) & (fabric.port_peer != NONE))
    tiers = _tiers(fabric, network)
    ends = fabric.port_node[network], fabric.port_node[fabric.port_peer[network]]
    return {
        int(port): (int(tiers[a]), int(tiers[b])) for port, a, b in zip(network, ends[0], ends[1], strict=True)
    }


def _tiers(fabric: Fabric, network: I64) -> I64:
    """Return hops to the nearest adapter, [nodes]; 0 for adapters."""
    tiers = np.full(fabric.nodes, _TIERS, np.int64)
    tiers[fabric.node_kind == NodeKind.NIC] = 0
    here, there = fabric.port_node[network], fabric.port_node[fabric.port_peer[network]]
    for _ in range(_TIERS):
        np.minimum.at(tiers, here, tiers[there] + 1)
    return tiers


def _nearest(kind: Kind, rows: dict[Kind, Rows]) -> Kind:
    """Return the kind that the cluster has: a cut with more tiers has those of the highest ones there."""
    if kind in rows:
        return kind
    here, there = kind
    way = np.sign(there - here)
    same = [one for one in rows if np.sign(one[1] - one[0]) == way and one[0] > 0]
    return min(same, key=lambda one: (abs(one[0] - here), abs(one[1] - there)), default=kind)
