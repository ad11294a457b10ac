"""What is broken, found in a blueprint: names of links and GPUs become cables and indices."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cached_property

from fabrictwin import catalog
from fabrictwin.base.errors import did_you_mean
from fabrictwin.base.records import record
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.connectivity import first_adapter
from fabrictwin.cluster.names import split_jack
from fabrictwin.cluster.spec.fault_section import (
    GpuFault,
    HostFault,
    LinkFault,
    NoiseFault,
    StormFault,
    SwitchFault,
)
from fabrictwin.cluster.spec.spec import Spec


@record
class CableFault:
    """A cable whose both directions run at `rate_bps`; 0 is a dead link."""

    cable: int  # into Blueprint.cables
    rate_bps: int


@record
class SlowGpu:
    """A GPU, as host index and its index in the host, whose compute takes longer, or which starts late."""

    host: int
    gpu: int
    slowdown: float = 1.0  # times as long
    late_ps: int = 0


ACCESS_CONTROL = "acs"


@record
class HostCause:
    """Something wrong with a host, as `fault_models.HostFault` names it."""

    kind: str
    limit_bytes: int = 64 << 10  # of locked memory
    gid: str = "link-local"
    interfaces: str = "none"


class Jacks:
    """Ports and cables of a blueprint by name."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint

    @cached_property
    def _switches(self) -> dict[str, int]:
        return {switch.name: s for s, switch in enumerate(self.blueprint.switches)}

    @cached_property
    def _hosts(self) -> dict[str, int]:
        return {host.name: h for h, host in enumerate(self.blueprint.hosts)}

    @cached_property
    def _cables(self) -> dict[tuple[int, int], int]:
        cables = self.blueprint.cables
        found: dict[tuple[int, int], int] = {}
        for node, port in ((cables.a_node, cables.a_port), (cables.b_node, cables.b_port)):
            found |= {jack: c for c, jack in enumerate(zip(node.tolist(), port.tolist(), strict=True))}
        return found

    def host(self, name: str) -> int:
        """A host's index. Raises ValueError."""
        if name not in self._hosts:
            raise ValueError(f"got host {name!r}, which is not in the cluster{did_you_mean(name, self._hosts)}")
        return self._hosts[name]

    def switch(self, name: str) -> int:
        """A switch's index. Raises ValueError."""
        if name not in self._switches:
            hint = did_you_mean(name, self._switches)
            raise ValueError(f"got switch {name!r}, which is not in the cluster{hint}")
        return self._switches[name]

    def cables_of(self, node: int) -> list[int]:
        """The cables that are plugged in at a node, in order of port."""
        return [cable for (at, _), cable in sorted(self._cables.items()) if at == node]

    def jack(self, name: str) -> tuple[int, int]:
        """`leaf-0/3` or `host-0/mlx5_0` as (node, port). Raises ValueError."""
        node, port = split_jack(name)
        if node in self._switches:
            index = self._switches[node]
            most = self.blueprint.switches[index].ports
            at = whole_or_none(port, least=1, most=most)
            if at is None:
                raise ValueError(f"got {name!r}, expected a port of {node} from 1 to {most}")
            return index, at
        if node in self._hosts:
            index = self._hosts[node]
            nics = self.blueprint.hosts[index].nics
            if port not in nics:
                raise ValueError(
                    f"got {name!r}, expected an adapter of {node} ({', '.join(nics)}){did_you_mean(port, nics)}"
                )
            return int(first_adapter(self.blueprint)[index]) + nics.index(port), 1
        known = [*self._switches, *self._hosts]
        raise ValueError(f"got {name!r}, which is neither a switch nor a host{did_you_mean(node, known)}")

    def cable(self, name: str) -> int:
        """The cable that is plugged in at a jack. Raises ValueError."""
        jack = self.jack(name)
        if jack not in self._cables:
            raise ValueError(f"got {name!r}, a port that no cable is plugged into")
        return self._cables[jack]


def find_faults(blueprint: Blueprint, spec: Spec) -> tuple[tuple[CableFault, ...], tuple[SlowGpu, ...]]:
    """The spec's faults from the start in this blueprint. Raises ConfigError for a name that is not there."""
    jacks = Jacks(blueprint)
    cables: list[CableFault] = []
    gpus: list[SlowGpu] = []
    for i, fault in enumerate(spec.faults):
        if isinstance(fault, NoiseFault | SwitchFault | StormFault | HostFault) or (
            isinstance(fault, LinkFault) and fault.timed
        ):
            continue  # `disturbances` and `host_causes` find those
        key = f"faults[{i}].{'link' if isinstance(fault, LinkFault) else 'gpu'}"
        try:
            if isinstance(fault, LinkFault):
                assert fault.rate is not None, "a link's fault without a time has a rate"
                cable = jacks.cable(fault.link)
                built = int(blueprint.cables.rate_bps[cable])
                if fault.rate > built:
                    key = f"faults[{i}].rate"
                    raise ValueError(f"got a rate above the {built / 1e9:g} Gb/s that the link was built for")
                if any(known.cable == cable for known in cables):
                    raise ValueError(f"got {fault.link!r}, a link that an earlier fault names")
                cables.append(CableFault(cable, fault.rate))
            else:
                gpus.append(_slow_gpu(jacks, fault))
                if any(known.host == gpus[-1].host and known.gpu == gpus[-1].gpu for known in gpus[:-1]):
                    raise ValueError(f"got {fault.gpu!r}, a GPU that an earlier fault names")
        except ValueError as error:
            raise spec.error(key, str(error)) from None
    return tuple(cables), tuple(gpus)


def host_causes(blueprint: Blueprint, spec: Spec) -> dict[int, tuple[HostCause, ...]]:
    """Return the faults of hosts, by host index. Raises ConfigError for a name that no host has."""
    found: dict[int, tuple[HostCause, ...]] = {}
    names = [host.name for host in blueprint.hosts]
    for i, fault in enumerate(spec.faults):
        if not isinstance(fault, HostFault):
            continue
        hosts = [h for h, name in enumerate(names) if fnmatchcase(name, fault.host)]
        if not hosts:
            hint = did_you_mean(fault.host, names)
            raise spec.error(f"faults[{i}].host", f"got {fault.host!r}, which is no host of the cluster{hint}")
        limit = 64 << 10 if fault.limit is None else fault.limit
        cause = HostCause(fault.cause, limit, fault.gid or "link-local", fault.interfaces or "none")
        for host in hosts:
            if any(known.kind == cause.kind for known in found.get(host, ())):
                message = f"got {fault.cause!r} for {names[host]}, of which an earlier fault says so"
                raise spec.error(f"faults[{i}].host", message)
            found[host] = (*found.get(host, ()), cause)
    return found


def _slow_gpu(jacks: Jacks, fault: GpuFault) -> SlowGpu:
    name = fault.gpu
    host_name, gpu = split_jack(name)
    host = jacks.host(host_name)
    kind = jacks.blueprint.hosts[host].type
    count = catalog.host(kind).nodes.gpu if kind else 0
    known = [f"gpu{i}" for i in range(count)]
    if gpu not in known:
        raise ValueError(f"got {name!r}, expected a GPU of {host_name} ({', '.join(known) or 'it has none'})")
    return SlowGpu(host, known.index(gpu), fault.slowdown or 1.0, fault.late or 0)
