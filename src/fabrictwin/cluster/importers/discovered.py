"""From a discovered fabric to a blueprint.

What the file says is taken as it is: links with their rates, GUIDs, LIDs, names. What it does not say comes from
the spec: which catalog host a recognised host is, how long cables are. What could not be placed is a line in
the blueprint's notes, alike things in one line; nothing is guessed without saying so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.textfile import read_text
from fabrictwin.cluster.blueprint import AggregationSite, Blueprint, Cables, HostSite, Identity, SwitchSite
from fabrictwin.cluster.connectivity import first_adapter, islands
from fabrictwin.cluster.generators.generate import check_cable
from fabrictwin.cluster.importers.fabric_tiers import infer_pods, infer_tiers
from fabrictwin.cluster.importers.ibnetdiscover import Discovery, Node, Port, parse
from fabrictwin.cluster.importers.recognise import Adapter, Recognised, recognise
from fabrictwin.cluster.names import listed, natural_key
from fabrictwin.cluster.spec.cluster_section import Bind, DiscoveredCluster
from fabrictwin.kernel.codes import NONE

_End = tuple[str, int]  # a node of the file and its port


# Discovered fabrics that are others' to give away, by the name of their file.
PUBLISHED = {"selene.compute.txt": "topo/selene.compute.txt in the GitHub repository Mellanox/ufm_sdk_3.0"}


def discover(cluster: DiscoveredCluster, *, folder: Path) -> Blueprint:
    """The blueprint of a discovered cluster. Raises ConfigError."""
    path = folder / cluster.ibnetdiscover
    if path.name in PUBLISHED and not path.exists():
        message = f"no such file: it is published as {PUBLISHED[path.name]}; put it there"
        raise ConfigError(message, file=path)
    return lay_out(parse(read_text(path), path), cluster)


def lay_out(discovery: Discovery, cluster: DiscoveredCluster) -> Blueprint:
    """Put everything that was discovered in its place. Raises ConfigError with a key below the section."""
    found = recognise(discovery)
    notes = list(found.notes)
    clash = sorted(set(found.hosts) & (set(found.switches) | set(found.aggregations)))
    if clash:
        notes.append(
            f"hosts renamed, as switches have the same names: {listed(f'{n} to {n}-host' for n in clash)}"
        )
    hosts = {(f"{name}-host" if name in clash else name): adapters for name, adapters in found.hosts.items()}
    sites, placed = _host_sites(hosts, cluster.bind, notes)
    switch_names, tier, pod = _rank_switches(discovery, found, placed, sites, cluster, notes)
    order = sorted(
        range(len(switch_names)),
        key=lambda s: (tier[s] if tier[s] != NONE else 99, natural_key(switch_names[s]), switch_names[s]),
    )
    renumbered = {p: i for i, p in enumerate(dict.fromkeys(pod[s] for s in order if pod[s] != NONE))}
    types = _switch_types(found, cluster, notes)
    switches = tuple(
        SwitchSite(
            name=name,
            type=types[name],
            ports=found.switches[name][0].port_count,
            tier=tier[s],
            pod=renumbered.get(pod[s], NONE),
            guid=found.switches[name][0].guid,
            lid=found.switches[name][0].lid,
        )
        for s, name in ((s, switch_names[s]) for s in order)
    )
    aggregations = sorted(found.aggregations.items(), key=lambda item: natural_key(item[0]))
    ends: dict[_End, tuple[int, int]] = {}
    for i, switch in enumerate(switches):
        node = found.switches[switch.name][0]
        ends |= {(node.name, port.number): (i, port.number) for port in node.ports}
    ends |= {end: (len(switches) + a, 1) for end, a in placed.items()}
    first = len(switches) + sum(len(site.nics) for site in sites)
    ends |= {(one.node.name, one.port.number): (first + i, 1) for i, (_, one) in enumerate(aggregations)}
    blueprint = Blueprint(
        technology="infiniband",
        hosts=sites,
        switches=switches,
        cables=_cables(discovery, ends, cluster, switches=len(switches), endpoints=first, notes=notes),
        aggregations=tuple(
            AggregationSite(name=name, guid=one.guid, lid=one.port.lid) for name, one in aggregations
        ),
        mtu_bytes=cluster.mtu,
        identities=_identities(discovery, found),
    )
    notes += _island_notes(blueprint)
    return Blueprint(**{**vars(blueprint), "notes": tuple(notes)})


def _identities(discovery: Discovery, found: Recognised) -> dict[int, Identity]:
    """Identities that the nodes report, by GUID."""
    place = {name: i for i, name in enumerate(discovery.nodes)}
    whose: list[tuple[int, Node, tuple[Port, ...], int]] = [
        (node.guid, node, node.ports, node.port_guid) for node, _ in found.switches.values()
    ]
    whose += [
        (adapter.guid, adapter.node, (adapter.port,), adapter.port.guid)
        for adapters in (found.aggregations, *found.hosts.values())
        for adapter in adapters.values()
    ]
    return {
        guid: Identity(
            vendor=node.vendor,
            device=node.device,
            system_guid=node.system_guid or node.guid,
            port_guid=port_guid or node.guid,
            description=node.description,
            node_guid=node.guid,
            port=1 if node.kind == "switch" else ports[0].number,
            ports=node.port_count,
            lmc=node.lmc if node.kind == "switch" else ports[0].lmc,
            enhanced_port0=node.enhanced,
            router=node.kind == "router",
            place=place[node.name],
            origin=node.guid == discovery.origin[0] and discovery.origin[1] in (0, port_guid),
            links=tuple(
                (port.number, port.width, port.speed) for port in ports if not _is_told_by_rate(discovery, port)
            ),
        )
        for guid, node, ports, port_guid in whose
    }


def _is_told_by_rate(discovery: Discovery, port: Port) -> bool:
    """Return whether a link's rate says its width and speed: four lanes, and the same at both ends."""
    back = next(p for p in discovery.nodes[port.peer].ports if p.number == port.peer_port)
    return port.width == 4 == back.width and port.speed == back.speed


def _host_sites(
    hosts: dict[str, dict[str, Adapter]], binds: tuple[Bind, ...], notes: list[str]
) -> tuple[tuple[HostSite, ...], dict[_End, int]]:
    """(hosts in natural order, the adapter index of every end of a link that belongs to one of them)."""
    bound = _bind(hosts, binds)
    sites: list[HostSite] = []
    placed: dict[_End, int] = {}
    problems: dict[str, list[str]] = defaultdict(list)
    start = 0
    for name in sorted(hosts, key=lambda n: (natural_key(n), n)):
        adapters = dict(sorted(hosts[name].items(), key=lambda item: natural_key(item[0])))
        if name in bound:
            kind, mapping = bound[name]
            nics = tuple(nic.hca for nic in catalog.host(kind).nics)
            present: dict[str, Adapter] = {}
            for hca, adapter in adapters.items():
                nic = mapping.get(hca, hca)
                if nic not in nics:
                    problems[f"{hca} is not an adapter of {kind}, its link is not placed"].append(name)
                elif nic in present:
                    problems[f"{hca} would be a second {nic}, its link is not placed"].append(name)
                else:
                    present[nic] = adapter
            for nic in nics:
                if nic not in present:
                    problems[f"{nic} of {kind} was not discovered, it has no link"].append(name)
        else:
            kind = ""
            nics = tuple(adapters)
            present = adapters
        for k, nic in enumerate(nics):
            if nic in present:
                placed[present[nic].node.name, present[nic].port.number] = start + k
        start += len(nics)
        sites.append(
            HostSite(
                name=name,
                type=kind,
                nics=nics,
                guids=tuple(present[nic].guid if nic in present else 0 for nic in nics),
                lids=tuple(present[nic].port.lid if nic in present else 0 for nic in nics),
            )
        )
    notes += [f"{problem}: {_hosts(names)}" for problem, names in problems.items()]
    unbound = [site.name for site in sites if not site.type]
    if unbound:
        notes.append(f"bound to no catalog host, so without GPUs: {_hosts(unbound)}")
    return tuple(sites), placed


def _hosts(names: list[str]) -> str:
    return f"{len(names)} host{'s' if len(names) > 1 else ''} ({listed(names)})"


def _bind(hosts: dict[str, dict[str, Adapter]], binds: tuple[Bind, ...]) -> dict[str, tuple[str, dict[str, str]]]:
    """Catalog host and adapter names by host name; of several binds that match, the first holds."""
    bound: dict[str, tuple[str, dict[str, str]]] = {}
    for i, bind in enumerate(binds):
        try:
            nics = [nic.hca for nic in catalog.host(bind.host).nics]
        except ConfigError as error:
            raise ConfigError(error.message, key=f"bind[{i}].host") from None
        mapping: dict[str, str] = {}
        for hca, target in bind.hcas.items():
            known = nics if isinstance(target, str) else range(len(nics))
            if target not in known:
                raise ConfigError(
                    f"got {target!r}, expected an adapter of {bind.host}: {', '.join(nics)}, "
                    f"or its place from 0 to {len(nics) - 1}{did_you_mean(str(target), nics)}",
                    key=f"bind[{i}].hcas.{hca}",
                )
            mapping[hca] = target if isinstance(target, str) else nics[target]
        matched = [name for name in hosts if name not in bound and fnmatchcase(name, bind.match)]
        if not matched:
            raise ConfigError(
                f"got {bind.match!r}, which matches none of the hosts that are left, "
                f"expected one of {listed(sorted(hosts, key=natural_key))}{did_you_mean(bind.match, hosts)}",
                key=f"bind[{i}].match",
            )
        seen = {hca for name in matched for hca in hosts[name]}
        for hca in bind.hcas:
            if hca not in seen:
                raise ConfigError(
                    f"got {hca!r}, which no matching host has, expected one of "
                    f"{listed(sorted(seen, key=natural_key), 12)}{did_you_mean(hca, seen)}",
                    key=f"bind[{i}].hcas",
                )
        bound |= dict.fromkeys(matched, (bind.host, mapping))
    return bound


def _rank_switches(
    discovery: Discovery,
    found: Recognised,
    placed: dict[_End, int],
    sites: tuple[HostSite, ...],
    cluster: DiscoveredCluster,
    notes: list[str],
) -> tuple[list[str], list[int], list[int]]:
    """(names, tiers, pods) of the switches, in natural order of their names."""
    names = sorted(found.switches, key=lambda n: (natural_key(n), n))
    number = {found.switches[name][0].name: s for s, name in enumerate(names)}
    host_of_adapter = [h for h, site in enumerate(sites) for _ in site.nics]
    neighbours: list[set[int]] = [set() for _ in names]
    hosts: list[set[int]] = [set() for _ in names]
    for name, s in ((found.switches[name][0].name, s) for s, name in enumerate(names)):
        for port in discovery.nodes[name].ports:
            if port.peer in number:
                neighbours[s] |= {number[port.peer]} - {s}
            elif (port.peer, port.peer_port) in placed:
                hosts[s].add(host_of_adapter[placed[port.peer, port.peer_port]])
    given: dict[int, int] = {}
    for i, hint in enumerate(cluster.switches):
        matched = [s for s, name in enumerate(names) if fnmatchcase(name, hint.match)]
        if not matched:
            raise ConfigError(
                f"got {hint.match!r}, which matches no switch, expected one of {listed(names)}"
                f"{did_you_mean(hint.match, names)}",
                key=f"switches[{i}].match",
            )
        if hint.tier is not None:
            given = dict.fromkeys(matched, hint.tier) | given
    bound = {h for h, site in enumerate(sites) if site.type}
    ranks = infer_tiers(neighbours, hosts=hosts, bound=bound, given=given)
    lost = [s for s, t in enumerate(ranks.tier) if t == NONE and s not in ranks.beyond]
    for which, what in (
        (ranks.demoted, "next to a leaf that hold hosts too, taken as spines"),
        (ranks.doubtful, "that hold only a few unbound hosts, taken as leaves"),
        (ranks.beyond, "beyond the top tier, where ways between hosts turn back, so of no tier"),
        (lost, "that no host reaches, so of no tier"),
    ):
        if which:
            notes.append(f"switches {what}: {listed(names[s] for s in which)}")
    joining = bound or set(range(len(sites)))
    pods = infer_pods(neighbours, hosts=hosts, joining=joining, tier=ranks.tier)
    return names, ranks.tier, pods


def _switch_types(found: Recognised, cluster: DiscoveredCluster, notes: list[str]) -> dict[str, str]:
    """The catalog switch that each is: as the spec says, else the model of its description, else ''."""
    known = catalog.names("switch")
    for i, hint in enumerate(cluster.switches):
        if hint.type is not None:
            try:
                catalog.switch(hint.type)
            except ConfigError as error:
                raise ConfigError(error.message, key=f"switches[{i}].type") from None
    types: dict[str, str] = {}
    unknown: dict[str, list[str]] = defaultdict(list)
    for name, (_, model) in found.switches.items():
        hinted = next((h.type for h in cluster.switches if h.type and fnmatchcase(name, h.match)), None)
        types[name] = hinted or (model if model in known else "")
        if not types[name]:
            unknown[model].append(name)
    for model, names in unknown.items():
        what = f"of a model that is not in the catalog ({model})" if model else "whose description gives no model"
        notes.append(f"switches {what}: {listed(sorted(names, key=natural_key))}")
    return types


def _cables(
    discovery: Discovery,
    ends: dict[_End, tuple[int, int]],
    cluster: DiscoveredCluster,
    *,
    switches: int,
    endpoints: int,
    notes: list[str],
) -> Cables:
    """Cables to adapters in adapter order, then trunks by their lower end, then aggregation nodes."""
    rows: list[tuple[tuple[int, ...], tuple[int, int], tuple[int, int], int, int]] = []
    loops: Counter[str] = Counter()
    uneven = 0
    for node in discovery.nodes.values():
        for port in node.ports:
            peer = discovery.nodes[port.peer]
            loops[node.description] += peer is node and port.number < port.peer_port
            a, b = ends.get((node.name, port.number)), ends.get((port.peer, port.peer_port))
            if a is None or b is None:
                continue  # noted where the adapter was not placed
            if a > b:
                continue
            back = next(p for p in peer.ports if p.number == port.peer_port)
            rates = _rate(discovery, port), _rate(discovery, back)
            uneven += rates[0] != rates[1]
            if b[0] >= endpoints:
                kind, length = 2, 0
            elif b[0] >= switches:
                kind, length = 0, cluster.host_cable
            else:
                kind, length = 1, cluster.trunk_cable
            order = (kind, *b, *a) if kind == 0 else (kind, *a, *b)
            rows.append((order, a, b, min(rates), length))
    rows.sort()
    if loops.total():
        where = listed(name for name in loops if loops[name])
        notes.append(f"{loops.total()} cables from a switch to itself, which no path takes ({where})")
    if uneven:
        notes.append(f"{uneven} links whose ends give different rates: the lower one holds")
    for key, length, kind in (("host_cable", cluster.host_cable, 0), ("trunk_cable", cluster.trunk_cable, 1)):
        fastest = max((rate for row, _, _, rate, _ in rows if row[0] == kind), default=None)
        if fastest is not None:
            check_cable(length, fastest, key=key)
    table = np.array([(*a, *b, rate, length) for _, a, b, rate, length in rows], dtype=np.int64).reshape(-1, 6)
    return Cables(*(np.ascontiguousarray(column) for column in table.T))


def _rate(discovery: Discovery, port: Port) -> int:
    try:
        return catalog.infiniband_rate(port.speed, port.width)
    except ConfigError as error:
        raise ConfigError(error.message, file=discovery.file, line=port.line) from None


def _island_notes(blueprint: Blueprint) -> list[str]:
    """One line for each part of the fabric that no cable joins to the largest."""
    label = islands(blueprint)
    adapters = int(first_adapter(blueprint)[-1])
    sizes = Counter(label.tolist())
    if len(sizes) < 2:
        return []
    largest = sizes.most_common(1)[0][0]
    notes: list[str] = []
    single: list[str] = []
    for root in sorted(sizes):
        if root == largest:
            continue
        nodes = np.flatnonzero(label == root)
        inside = [blueprint.switches[s].name for s in nodes[nodes < len(blueprint.switches)]]
        hosts = int(((nodes >= len(blueprint.switches)) & (nodes < adapters)).sum())
        if inside:
            notes.append(
                f"an island that no cable joins to the rest: {len(inside)} switches ({listed(inside)}), "
                f"{hosts} adapters"
            )
        elif len(nodes) > 1:  # an adapter without a cable is noted with its host
            single.append(" and ".join(blueprint.node_name(int(n)) for n in nodes))
    if single:
        notes.append(f"adapters joined to each other and to no switch: {listed(single)}")
    return notes
