"""All of it together: switches, hosts, subnet, Slurm's topology, Kubernetes manifests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeVar

from fabrictwin.base.grouped import flat, grouped
from fabrictwin.base.records import record
from fabrictwin.configuration.model.hosts import Adapter, Host
from fabrictwin.configuration.model.subnet import Subnet
from fabrictwin.configuration.model.switches import Switch

Record = TypeVar("Record")


@record
class SlurmSwitch:
    """A line of topology.conf: a switch with nodes, or one with switches."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


@record
class SlurmNode:
    """A line of gres.conf."""

    nodes: tuple[str, ...]
    name: str
    gpu_type: str
    files: str


@record
class Slurm:
    """Slurm's view of the network and of the devices."""

    switches: tuple[SlurmSwitch, ...] = ()
    gres: tuple[SlurmNode, ...] = ()
    plugin: str = ""  # of topology
    file: str = ""


@record
class Intent:
    """The classes of traffic that all parts are to agree on, as `configure` was told."""

    lossless: bool = True
    dscp: int = 26
    priority: int = 3
    cnp_dscp: int = 48
    cnp_priority: int = 6


@record
class Configuration:
    """A cluster's configuration, or the part of it that was read."""

    switches: Mapping[str, Switch] = field(default_factory=dict)
    hosts: Mapping[str, Host] = field(default_factory=dict)
    subnet: Subnet | None = None
    slurm: Slurm | None = None
    manifests: tuple[Mapping[str, Any], ...] = ()

    def merged(self, other: Configuration) -> Configuration:
        """Return both together; what the other says of the same host or subnet is laid over what stands here."""
        hosts = dict(self.hosts)
        for name, host in other.hosts.items():
            hosts[name] = merged_hosts(hosts[name], host) if name in hosts else host
        return Configuration(
            {**self.switches, **other.switches},
            hosts,
            _over(self.subnet, other.subnet),
            _over(self.slurm, other.slurm),
            self.manifests + other.manifests,
        )


def _over(first: Any, second: Any) -> Any:
    """The one that is there, or both: the second's fields where it says something."""
    if first is None or second is None:
        return second if first is None else first
    return _laid_over(first, second, type(second)())


def _laid_over(first: Record, second: Record, blank: Record) -> Record:
    """Return the first record with the fields in which the second says something else than a blank one."""
    ours, said, silent = flat(first), flat(second), flat(blank)
    more = {name: value for name, value in said.items() if value != silent[name]}
    for name, value in more.items():
        if isinstance(value, Mapping):
            more[name] = {**ours[name], **value}
    return grouped(first, more)


def merged_hosts(first: Host, second: Host) -> Host:
    """Return a host of which several files speak; adapters are matched by device or interface."""
    adapters = dict(first.adapters)
    for key, adapter in second.adapters.items():
        same = next(
            (
                known
                for known, a in adapters.items()
                if key in (known, a.device, a.netdev) or (adapter.netdev and adapter.netdev == a.netdev)
            ),
            None,
        )
        if same is None:
            adapters[key] = adapter
            continue
        known = adapters.pop(same)
        merged = _laid_over(known, adapter, Adapter(""))
        adapters[merged.device or same] = merged
    ours, theirs = flat(first), flat(second)
    rest: dict[str, Any] = {
        name: {**ours[name], **theirs[name]} for name in ("sysctl", "limits", "module_options", "services", "nccl")
    }
    lists: dict[str, Any] = {
        name: tuple(dict.fromkeys((*ours[name], *theirs[name])))
        for name in ("modules", "kernel_arguments", "container")
    }
    management = second.management or first.management
    file = os.path.commonpath([first.file, second.file]) if first.file and second.file else first.file
    return grouped(first, {"adapters": adapters, "management": management, "file": file, **rest, **lists})
