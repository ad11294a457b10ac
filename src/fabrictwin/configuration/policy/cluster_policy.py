"""A cluster's whole configuration from its spec."""

from __future__ import annotations

from typing import Literal

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.qos_section import Qos
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.configuration.model.cluster import Configuration, Intent
from fabrictwin.configuration.model.hosts import Host
from fabrictwin.configuration.model.switches import Switch
from fabrictwin.configuration.policy.chips import BOXES, CHIPS, Box, box_of
from fabrictwin.configuration.policy.host_policy import Racked, host
from fabrictwin.configuration.policy.manifest_policy import manifests
from fabrictwin.configuration.policy.scheduler_policy import slurm
from fabrictwin.configuration.policy.subnet_policy import subnet
from fabrictwin.configuration.policy.switch_policy import Site, switch
from fabrictwin.configuration.policy.wiring import End, ends

Target = Literal["sonic", "nvue", "opensm", "host", "slurm", "k8s"]
TARGETS: tuple[Target, ...] = ("sonic", "nvue", "opensm", "host", "slurm", "k8s")


@record
class Planned:
    """A cluster, who is plugged into whom, and the classes of traffic that it is to have."""

    spec: Spec
    blueprint: Blueprint
    ends: dict[int, list[End]]
    intent: Intent


def plan(spec: Spec) -> Planned:
    """Return what a configuration is made from. Raises ConfigError."""
    blueprint = build(spec.cluster, spec=spec)
    return Planned(spec, blueprint, ends(blueprint), intent_of(qos_of(spec)))


def qos_of(spec: Spec) -> Qos:
    """Return the spec's `network.qos`, or its defaults."""
    return spec.qos or Qos()


def intent_of(qos: Qos) -> Intent:
    """Return the classes of traffic that a spec asks for."""
    return Intent(qos.lossless, qos.dscp, qos.priority, qos.cnp_dscp, qos.cnp_priority)


def configuration(planned: Planned, target: Target, *, os: str = "sonic") -> Configuration:
    """Return the part of the cluster's configuration that a target is about; `os` names switches' ports to hosts.

    Raises ConfigError for a target that the technology has not.
    """
    technology = planned.blueprint.technology
    if target in ("sonic", "nvue"):
        if technology != "ethernet":
            raise ConfigError(f"got --for {target} for InfiniBand, expected opensm", key="--for")
        return Configuration(switches=switches(planned, target))
    if target == "opensm":
        if technology != "infiniband":
            raise ConfigError("got --for opensm for Ethernet, expected sonic or nvue", key="--for")
        routing = planned.spec.cluster.routing
        return Configuration(subnet=subnet(planned.blueprint, engine=routing.engine, lmc=routing.lmc))
    if target == "slurm":
        return Configuration(slurm=slurm(planned.blueprint, planned.ends))
    found = hosts(planned, os)
    if target == "host":
        return Configuration(hosts=found)
    return Configuration(manifests=manifests(found))


def switches(planned: Planned, os: str) -> dict[str, Switch]:
    """Return every switch's configuration. Raises ConfigError for a box or a buffer that is not known."""
    blueprint, chip = planned.blueprint, qos_of(planned.spec).chip
    names = [f"{h.name}/{nic}" for h in blueprint.hosts for nic in h.nics]
    names += [a.name for a in blueprint.aggregations]
    boxes: list[Box] = []
    for site in blueprint.switches:
        box, known = box_of(site.type, chip), box_of(site.type, None)
        if box is not None and known is not None and box.chip != known.chip:
            raise ConfigError(
                f"got {chip} for switch {site.name} of type {site.type!r}, expected {known.chip}, the chip in it",
                key="cluster.network.qos.chip",
            )
        if box is None:
            raise ConfigError(
                f"missing for switch {site.name} of type {site.type or 'unknown'!r}, expected {', '.join(CHIPS)}; "
                f"or a switch of type {', '.join(BOXES)}",
                key="cluster.network.qos.chip",
            )
        if os == "nvue" and not box.chip.startswith("spectrum"):
            raise ConfigError(
                f"got --for nvue for switch {site.name} of chip {box.chip}, expected sonic: Cumulus Linux 5 runs "
                "on Spectrum alone",
                key="--for",
            )
        boxes.append(box)
    return {
        site.name: switch(Site(blueprint, number, planned.ends, boxes, names), planned.intent, os)
        for number, site in enumerate(blueprint.switches)
    }


def hosts(planned: Planned, os: str) -> dict[str, Host]:
    """Return every host's configuration."""
    chip = qos_of(planned.spec).chip
    boxes = [box_of(site.type, chip) for site in planned.blueprint.switches]
    found, first = {}, 0
    for number, site in enumerate(planned.blueprint.hosts):
        racked = Racked(planned.blueprint, number, first, planned.ends, os, boxes)
        first += len(site.nics)
        found[site.name] = host(racked, planned.intent)
    return found
