"""`network.qos` of a spec as what the packet kernel is told of each port and priority.

Rows name ports by globs of `leaf-0/3` and `host-0/mlx5_0`; later rows go over earlier ones. Service levels stand
for DSCPs: each has RoCE's unless `dscp_of_level` says otherwise, CNPs have the last. Maps from DSCP to priority
become rows of the kernel's table of service levels.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.cluster.spec.qos_section import Qos, QosPort, QosPriority
from fabrictwin.engines.packet.network.model import NetworkModel
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.state.port_qos import PortQos

LANES = 8
CNP_LEVEL = 15
ALPHA_ONE = 256
MOST_CELL = 1 << 16
_PER_PORT = (
    "group_row",
    "queue_row",
    "sends",
    "obeys",
    "frame",
    "cell",
    "response_ps",
    "detection_ps",
    "restoration_ps",
    "forwards",
    "strict",
)
_PER_SLOT = ("headroom", "alpha_q", "threshold", "reserve", "resume", "kmin", "kmax", "pmax_q", "weight")


def qos_config(model: NetworkModel, qos: Qos, work_ports: int) -> dict[str, Any]:
    """Return the parts of the kernel's `Config` that `network.qos` has a say in. Raises ConfigError."""
    rows = _Rows(model, qos, work_ports)
    for index, row in enumerate(qos.ports):
        rows.take(row, f"cluster.network.qos.ports[{index}]")
    return rows.config()


def gearbox_ps(model: NetworkModel, qos: Qos) -> Any:
    """Return what gearboxes add to each port's way to its peer, [ports] in ps."""
    names = port_names(model.fabric)
    more = np.zeros(len(names), np.int64)
    for row in qos.ports:
        if row.gearbox is not None:
            more[matching_ports(row, names)] = row.gearbox
    return more


def port_names(fabric: Fabric) -> list[str]:
    """Names of all ports, '' for those inside hosts; an adapter's one port has the adapter's name."""
    network = np.isin(fabric.port_kind, NETWORK)
    nic = fabric.node_kind[fabric.port_node] == NodeKind.NIC
    return [
        "" if not network[p] else fabric.node_name(int(fabric.port_node[p])) if nic[p] else fabric.port_name(p)
        for p in range(fabric.ports)
    ]


def matching_ports(row: QosPort, names: list[str]) -> list[int]:
    """Return the ports whose names a row has, or whose names its globs match."""
    plain = set(row.ports)
    globs = [pattern for pattern in row.ports if any(mark in pattern for mark in "*?[")]
    return [
        port
        for port, name in enumerate(names)
        if name and (name in plain or any(fnmatchcase(name, pattern) for pattern in globs))
    ]


class _Rows:
    """What rows said so far, as arrays of ports (those behind the fabric's at the end, of which none speaks)."""

    def __init__(self, model: NetworkModel, qos: Qos, work_ports: int) -> None:
        self.model, self.qos = model, qos
        self.names = port_names(model.fabric)
        ports = model.fabric.ports + 2 * work_ports
        self.ruled = np.zeros(ports, bool)
        self.of_port: dict[str, Any] = {name: np.zeros(ports, np.int64) for name in _PER_PORT}
        self.of_port["group_row"][:] = self.of_port["queue_row"][:] = NONE
        self.of_slot: dict[str, Any] = {name: np.full((ports, LANES), NONE, np.int64) for name in _PER_SLOT}
        self.tables: list[tuple[int, ...]] = [tuple(level % LANES for level in range(16))]

    def take(self, row: QosPort, key: str) -> None:
        """Lay a row over what stands. Raises ConfigError for a name that no port has."""
        at = np.array(matching_ports(row, self.names), np.int64)
        for pattern in row.ports:
            if not any(mark in pattern for mark in "*?[") and pattern not in self.names:
                hint = did_you_mean(pattern, {name for name in self.names if name})
                raise ConfigError(f"got {pattern!r}, which is no port of the network{hint}", key=f"{key}.ports")
        if not len(at):
            raise ConfigError(f"got {', '.join(row.ports[:3])}, which no port's name matches", key=f"{key}.ports")
        fresh = at[~self.ruled[at]]
        self.ruled[at] = True
        # a port that a row speaks of maps every class to priority 0 and pauses nothing until it is said
        self.of_port["group_row"][fresh] = self.of_port["queue_row"][fresh] = self._table({})
        self.of_slot["headroom"][fresh] = 0
        for name, priorities in (("sends", row.pauses), ("obeys", row.obeys)):
            if priorities is not None:
                self.of_port[name][at] = sum(1 << priority for priority in set(priorities))
        for name, numbers in (("group_row", row.groups), ("queue_row", row.queues)):
            if numbers is not None:
                self.of_port[name][at] = self._table(numbers)
        for name, value in (("response_ps", row.response), ("frame", row.frame), ("cell", row.cell)):
            if value is not None:
                self.of_port[name][at] = value
        if row.watchdog is not None:
            self.of_port["detection_ps"][at] = row.watchdog.detection
            self.of_port["restoration_ps"][at] = row.watchdog.restoration
            self.of_port["forwards"][at] = row.watchdog.action == "forward"
        for number, said in (row.priorities or {}).items():
            self._priority(at, number, said)

    def _priority(self, at: Any, number: int, said: QosPriority) -> None:
        slot = {name: values[:, number] for name, values in self.of_slot.items()}
        for name, value in (
            ("headroom", said.headroom),
            ("reserve", said.reserve),
            ("resume", said.resume),
            ("weight", said.weight),
        ):
            if value is not None:
                slot[name][at] = value
        if said.alpha is not None:
            slot["alpha_q"][at], slot["threshold"][at] = round(said.alpha * ALPHA_ONE), NONE
        if said.threshold is not None:
            slot["threshold"][at] = said.threshold
        if said.ecn is not None:
            slot["kmin"][at], slot["kmax"][at] = said.ecn.min, said.ecn.max
            slot["pmax_q"][at] = round(said.ecn.probability * 2**32)
        if said.strict is not None:
            bit = 1 << number
            self.of_port["strict"][at] = self.of_port["strict"][at] & ~bit | (bit if said.strict else 0)

    def _table(self, numbers: dict[int, int]) -> int:
        """The row of service levels for a map of DSCPs; one that is there already is used again."""
        levels = [self.qos.dscp_of_level.get(level, self.qos.dscp) for level in range(16)]
        levels[CNP_LEVEL] = self.qos.cnp_dscp
        row = tuple(numbers.get(dscp, 0) for dscp in levels)
        if row not in self.tables:
            self.tables.append(row)
        return self.tables.index(row)

    def config(self) -> dict[str, Any]:
        """Parts of the kernel's configuration."""
        from fabrictwin.kernel.packet.state.port_qos import PortQos as Ports

        most = int(self.of_slot["kmax"].max(initial=0))
        if most >= 2**31:
            raise ConfigError(f"got an ECN threshold of {most} bytes, expected less than 2 GiB", key="qos.ports")
        if int(self.of_port["cell"].max(initial=0)) > MOST_CELL:
            raise ConfigError("got a cell above 64 KiB", key="qos.ports")
        found: PortQos = Ports(ruled=self.ruled, cnp_sl=CNP_LEVEL, **self.of_port, **self.of_slot)
        return {"qos": found, "sl2vl": tuple(self.tables)}
