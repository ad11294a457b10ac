"""Fabrics, and one with managers, that the tests of the subnet room share."""

from __future__ import annotations

from functools import cache

import numpy as np

from fabrictwin.cluster.blueprint import Blueprint, Cables, HostSite, SwitchSite
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.operation.manager_host import HostedManager, first_adapter, settle
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.subnet.wire.link_encodings import Speed, rate_of

HDR = rate_of(4, Speed.HDR)


def blueprint(
    switches: list[tuple[str, int]], hosts: list[str], cables: list[tuple[str, int, str, int]], rate: int = HDR
) -> Blueprint:
    """Single-adapter hosts and switches of so many ports, joined by `(name, port, name, port)`."""
    index = {name: i for i, (name, _) in enumerate(switches)}
    index |= {name: len(switches) + i for i, name in enumerate(hosts)}
    columns = [np.array([index[c[0]] for c in cables]), np.array([c[1] for c in cables])]
    columns += [np.array([index[c[2]] for c in cables]), np.array([c[3] for c in cables])]
    return Blueprint(
        technology="infiniband",
        hosts=tuple(HostSite(name, "", ("mlx5_0",)) for name in hosts),
        switches=tuple(SwitchSite(name, "qm8700", ports) for name, ports in switches),
        cables=Cables(*columns, np.full(len(cables), rate), np.full(len(cables), 3000)),
    )


@cache
def two_tiers(leaves: int = 4, spines: int = 2, down: int = 4, rate: int = HDR) -> Fabric:
    """`down` hosts on each leaf, one link from every leaf to every spine."""
    switches = [(f"leaf-{i}", down + spines) for i in range(leaves)] + [
        (f"spine-{i}", leaves) for i in range(spines)
    ]
    hosts = [f"host-{i}" for i in range(leaves * down)]
    cables = [(f"leaf-{i // down}", i % down + 1, f"host-{i}", 1) for i in range(leaves * down)]
    cables += [(f"leaf-{i}", down + 1 + j, f"spine-{j}", i + 1) for i in range(leaves) for j in range(spines)]
    return compile_fabric(blueprint(switches, hosts, cables, rate))


class Site:
    """A fabric with a manager on its first host."""

    def __init__(self, fabric: Fabric | None = None, *, manage: bool = True, **keys: object) -> None:
        self.state = SubnetState(fabric or two_tiers())
        self.endpoint = Endpoint(Network(self.state))
        self.managers: list[HostedManager] = []
        if manage:
            self.manage(first_adapter(self.endpoint), **keys)
            self.now = settle(self.managers, 0)

    def manage(self, m: int, **keys: object) -> HostedManager:
        self.managers.append(HostedManager(self.endpoint, m, **keys))
        return self.managers[-1]

    @property
    def hosted(self) -> HostedManager:
        return self.managers[0]

    def settle(self) -> None:
        self.now = settle(self.managers, self.now)

    def slot(self, name: str, port: int) -> int:
        return self.state.base[self.state.find(name)] + port

    def arrives(self, a: int, b: int, offset: int = 0) -> bool:
        """Return True where a packet of node a reaches node b by what switches and links hold now."""
        state, network = self.state, self.endpoint.network
        lid = state.lid(state.end_slot(b)) + offset
        return network.route(state.end_slot(a), lid)[0] == state.end_slot(b)

    def all_arrive(self) -> bool:
        alive = [m for m, ok in enumerate(self.state.alive) if ok]
        ends = [m for m in alive if not self.state.is_switch[m]]
        return all(self.arrives(a, b) for a in ends for b in alive)
