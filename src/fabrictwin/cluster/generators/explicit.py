"""From an explicit cluster, every host, switch and cable by itself, to a blueprint."""

from __future__ import annotations

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.cluster.blueprint import AggregationSite, Blueprint, Cables, HostSite, Identity, SwitchSite
from fabrictwin.cluster.generators.generate import check_cable
from fabrictwin.cluster.spec.cluster_section import ExplicitCluster, ExplicitHost, ExplicitSwitch


def assemble(cluster: ExplicitCluster) -> Blueprint:
    """The blueprint of an explicit cluster. Raises ConfigError with a key below the section."""
    hosts = tuple(_host(host, i) for i, host in enumerate(cluster.hosts))
    switches = tuple(_switch(switch, i) for i, switch in enumerate(cluster.switches))
    _distinct(cluster)
    return Blueprint(
        technology=cluster.technology,
        hosts=hosts,
        switches=switches,
        cables=_plug(cluster, hosts, switches),
        aggregations=tuple(AggregationSite(a.name, a.guid, a.lid) for a in cluster.aggregations),
        mtu_bytes=cluster.mtu,
        notes=cluster.notes,
        identities={
            who.guid: Identity(**{name: value for name, value in who if name != "guid"})
            for who in cluster.identities
        },
    )


def _host(host: ExplicitHost, index: int) -> HostSite:
    nics = host.nics
    if host.type:
        try:
            known = tuple(nic.hca for nic in catalog.host(host.type).nics)
        except ConfigError as error:
            raise ConfigError(error.message, key=f"hosts[{index}].type") from None
        if nics and nics != known:
            raise ConfigError(
                f"got {', '.join(nics)}, expected what a {host.type} has, in its order: {', '.join(known)}",
                key=f"hosts[{index}].nics",
            )
        nics = known
    if not nics:
        raise ConfigError("got a host without adapters, expected nics or a catalog type", key=f"hosts[{index}]")
    if len(set(nics)) < len(nics):
        raise ConfigError("got an adapter twice, expected each once", key=f"hosts[{index}].nics")
    for key, values in (("guids", host.guids), ("lids", host.lids)):
        if values and len(values) != len(nics):
            raise ConfigError(
                f"got {len(values)}, expected {len(nics)}: one for each adapter", key=f"hosts[{index}].{key}"
            )
    return HostSite(name=host.name, type=host.type, nics=nics, guids=host.guids, lids=host.lids)


def _switch(switch: ExplicitSwitch, index: int) -> SwitchSite:
    ports, kind = switch.ports, switch.type
    if switch.type:
        try:
            entry = catalog.switch(switch.type)
        except ConfigError as error:
            raise ConfigError(error.message, key=f"switches[{index}].type") from None
        ports, kind = entry.ports if ports is None else ports, entry.name
    if ports is None:
        raise ConfigError("missing, expected a number of ports or a catalog type", key=f"switches[{index}].ports")
    return SwitchSite(
        name=switch.name,
        type=kind,
        ports=ports,
        tier=switch.tier,
        pod=switch.pod,
        guid=switch.guid,
        lid=switch.lid,
    )


def _distinct(cluster: ExplicitCluster) -> None:
    """Names are what cables hold on to, GUIDs what nodes are told by. (LIDs may repeat from plane to plane.)"""
    names: dict[str, str] = {}
    guids: dict[int, str] = {}
    sites = [(f"hosts[{i}]", host.name, host.guids) for i, host in enumerate(cluster.hosts)]
    sites += [(f"switches[{i}]", s.name, (s.guid,)) for i, s in enumerate(cluster.switches)]
    sites += [(f"aggregations[{i}]", a.name, (a.guid,)) for i, a in enumerate(cluster.aggregations)]
    for key, name, its_guids in sites:
        if name in names:
            raise ConfigError(f"got {name!r} twice, first at {names[name]}", key=f"{key}.name")
        names[name] = key
        for guid in its_guids:
            if guid and guid in guids:
                raise ConfigError(f"got the GUID 0x{guid:016x} twice, first at {guids[guid]}", key=key)
            guids[guid] = key


def _plug(cluster: ExplicitCluster, hosts: tuple[HostSite, ...], switches: tuple[SwitchSite, ...]) -> Cables:
    switch_number = {switch.name: s for s, switch in enumerate(switches)}
    adapters: dict[tuple[str, str], int] = {}
    for host in hosts:
        adapters |= {(host.name, nic): len(switches) + len(adapters) + k for k, nic in enumerate(host.nics)}
    nics = {host.name: host.nics for host in hosts}
    first = len(switches) + len(adapters)
    aggregation_number = {site.name: first + i for i, site in enumerate(cluster.aggregations)}
    known = [*switch_number, *nics, *aggregation_number]
    plugged: dict[tuple[int, int], int] = {}
    reaches: set[tuple[int, int]] = set()

    def jack(node: str, port: str, row: int) -> tuple[int, int]:
        key = f"cables[{row}]"
        if (node, port) in adapters:
            found = adapters[node, port], 1
        elif node in switch_number:
            number = switch_number[node]
            at = whole_or_none(port, least=1, most=switches[number].ports)
            if at is None:
                raise ConfigError(
                    f"got '{node}/{port}', expected a port of {node} from 1 to {switches[number].ports}", key=key
                )
            found = number, at
        elif node in aggregation_number:
            if port != "1":
                raise ConfigError(f"got '{node}/{port}', expected the only port '{node}/1'", key=key)
            found = aggregation_number[node], 1
        elif node in nics:
            hint = did_you_mean(port, nics[node])
            raise ConfigError(
                f"got '{node}/{port}', expected an adapter of {node}: {', '.join(nics[node])}{hint}", key=key
            )
        else:
            raise ConfigError(f"got {node!r}, which is no host or switch{did_you_mean(node, known)}", key=key)
        if found in plugged:
            raise ConfigError(f"got '{node}/{port}', which cables[{plugged[found]}] is plugged into", key=key)
        plugged[found] = row
        return found

    rows = []
    for row, cable in enumerate(cluster.cables):
        a, b = jack(*cable.a, row), jack(*cable.b, row)
        if a[0] == b[0] and not cluster.identities:  # a discovered fabric may have cables back to the same switch
            raise ConfigError(f"got a cable from {cable.a[0]} to itself", key=f"cables[{row}]")
        rate = cluster.link_rate if cable.rate_bps is None else cable.rate_bps
        if rate is None:
            raise ConfigError(
                "got no rate, expected one such as '; 200 Gb/s', or link_rate for all cables", key=f"cables[{row}]"
            )
        trunk = a[0] < len(switches) and b[0] < len(switches)
        length = cable.length_mm
        if length is None:
            length = cluster.trunk_cable if trunk else cluster.host_cable
        if (length, rate) not in reaches:
            check_cable(length, rate, key=f"cables[{row}]")
            reaches.add((length, rate))
        rows.append((*a, *b, rate, length))
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    return Cables(*(np.ascontiguousarray(column) for column in table.T))
