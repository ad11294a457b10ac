"""A blueprint as text: an explicit cluster in YAML, what `ibnetdiscover` would print, a drawing for Graphviz.

YAML holds everything and reads back as the same blueprint. `ibnetdiscover`'s format knows no catalog hosts,
lengths or tiers; those come from the import's bindings and lengths and from the shape. GUIDs are invented,
the same ones every time, where the blueprint has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.units import exact_size, format_rate
from fabrictwin.cluster.blueprint import Blueprint, Identity
from fabrictwin.cluster.guids import node_guids, port_guids
from fabrictwin.cluster.spec.cluster_section import Cable, format_cable


def to_yaml(blueprint: Blueprint) -> str:
    """The `cluster` section, explicit, that assembles to this very blueprint."""
    return "\n".join(_yaml_lines(blueprint)) + "\n"


def _yaml_lines(blueprint: Blueprint) -> Iterator[str]:
    yield f"technology: {blueprint.technology}"
    yield f"mtu: {exact_size(blueprint.mtu_bytes)}"
    if blueprint.notes:
        yield "notes:"
        yield from (f"  - {json.dumps(note)}" for note in blueprint.notes)
    yield "hosts:" if blueprint.hosts else "hosts: []"
    for host in blueprint.hosts:
        fields = {"name": _text(host.name)}
        if host.type:
            fields["type"] = _text(host.type)
        else:
            fields["nics"] = f"[{', '.join(_text(nic) for nic in host.nics)}]"
        if host.guids:
            fields["guids"] = f"[{', '.join(f'0x{guid:016x}' for guid in host.guids)}]"
        if host.lids:
            fields["lids"] = f"[{', '.join(str(lid) for lid in host.lids)}]"
        yield _flow(fields)
    if blueprint.switches:
        yield "switches:"
    for switch in blueprint.switches:
        fields = {"name": _text(switch.name)}
        if switch.type:
            fields["type"] = _text(switch.type)
        fields["ports"] = str(switch.ports)
        fields |= {k: str(v) for k, v in (("tier", switch.tier), ("pod", switch.pod)) if v != -1}
        yield _flow(fields | _ids(switch.guid, switch.lid))
    if blueprint.aggregations:
        yield "aggregations:"
    for node in blueprint.aggregations:
        yield _flow({"name": _text(node.name)} | _ids(node.guid, node.lid))
    if blueprint.identities:
        yield "identities:"
    for guid, who in blueprint.identities.items():
        yield _flow({"guid": f"0x{guid:016x}"} | _identity_fields(who))
    yield "cables:" if len(blueprint.cables) else "cables: []"
    jacks = Jacknames(blueprint)
    for a, ap, b, bp, rate, length in _rows(blueprint):
        yield f"  - {_text(format_cable(Cable(jacks.jack(a, ap), jacks.jack(b, bp), rate, length)))}"


def _identity_fields(who: Identity) -> dict[str, str]:
    """Fields of an identity, but for those that are as where nothing is said."""
    found = {}
    for field in fields(who):
        value = getattr(who, field.name)
        if value == field.default:
            continue
        if isinstance(value, str) or field.name == "links":
            found[field.name] = json.dumps(value)
        elif isinstance(value, bool):
            found[field.name] = str(value).lower()
        elif field.name.endswith("guid") or field.name in ("vendor", "device"):
            found[field.name] = f"{value:#x}"
        else:
            found[field.name] = str(value)
    return found


def _ids(guid: int, lid: int) -> dict[str, str]:
    return ({"guid": f"0x{guid:016x}"} if guid else {}) | ({"lid": str(lid)} if lid else {})


def _flow(fields: dict[str, str]) -> str:
    return f"  - {{{', '.join(f'{key}: {value}' for key, value in fields.items())}}}"


def _text(value: str) -> str:
    """Plain where YAML reads it back as the same text, quoted where it might not."""
    plain = value.replace("-", "").replace("_", "").replace("/", "").replace(" ", "").replace(";", "")
    plain = plain.replace(".", "")
    words = ("true", "false", "null", "nan", "inf")
    if plain.isascii() and plain.isalnum() and value[0].isalpha() and value.lower() not in words:
        return value
    return json.dumps(value)


def _rows(blueprint: Blueprint) -> Iterator[tuple[int, int, int, int, int, int]]:
    cables = blueprint.cables
    ends = (cables.a_node, cables.a_port, cables.b_node, cables.b_port)
    yield from zip(*(column.tolist() for column in (*ends, cables.rate_bps, cables.length_mm)), strict=True)


class Jacknames:
    """Nodes and ports of a blueprint as people write them."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.switches = len(blueprint.switches)
        self.adapters = [(host.name, nic) for host in blueprint.hosts for nic in host.nics]
        self.names = [
            *(switch.name for switch in blueprint.switches),
            *(host for host, _ in self.adapters),
            *(node.name for node in blueprint.aggregations),
        ]

    def jack(self, node: int, port: int) -> tuple[str, str]:
        adapter = node - self.switches
        if 0 <= adapter < len(self.adapters):
            return self.adapters[adapter]
        return self.names[node], str(port)


def to_ibnetdiscover(blueprint: Blueprint) -> str:
    """Write the fabric as `ibnetdiscover` would print it. Raises ConfigError where it could not print it."""
    if blueprint.technology != "infiniband":
        raise ConfigError(f"got a cluster of {blueprint.technology}, expected one of infiniband")
    switches = blueprint.switches
    adapters = [(host, k) for host in blueprint.hosts for k in range(len(host.nics))]
    guids = node_guids(blueprint)
    lids = [s.lid for s in switches]
    lids += [host.lids[k] if host.lids else 0 for host, k in adapters]
    lids += [node.lid for node in blueprint.aggregations]
    descriptions = [f"MF0;{s.name}:M{s.type.upper()}/U1" if s.type else s.name for s in switches]
    descriptions += [f"{host.name} {host.nics[k]}" for host, k in adapters]
    descriptions += ["Mellanox Technologies Aggregation Node"] * len(blueprint.aggregations)
    first = len(switches)
    known = [blueprint.identities.get(guid) for guid in guids]
    descriptions = [who.description if who else text for who, text in zip(known, descriptions, strict=True)]
    ports = port_guids(blueprint)
    speeds = _speed_names()
    links: dict[int, list[tuple[int, int, int, str]]] = {}
    for a, ap, b, bp, rate, _ in _rows(blueprint):
        if rate not in speeds:
            raise ConfigError(
                f"got a link of {format_rate(rate)}, expected the rate of an InfiniBand width and speed"
            )
        links.setdefault(a, []).append((ap, b, bp, speeds[rate]))
        links.setdefault(b, []).append((bp, a, ap, speeds[rate]))
    out = ["#", "# Topology file: written by fabrictwin", "#"]
    out += [
        f"# Initiated from node {who.node_guid:016x} port {who.port_guid:016x}"
        for who in known
        if who is not None and who.origin
    ]
    out += [""]
    in_file = [who.place if who is not None and who.place >= 0 else len(guids) for who in known]
    for n in sorted(range(len(guids)), key=lambda n: in_file[n]):
        hexadecimal = f"{guids[n]:016x}"
        who = known[n]
        if who is not None and who.vendor:
            out += [f"vendid={who.vendor:#x}", f"devid={who.device:#x}"]
        if who is not None:
            out += [f"sysimgguid={who.system_guid:#x}"]
        if n < first:
            out += [f"switchguid=0x{guids[n]:x}({ports[n]:x})"]
            out += [
                f'Switch\t{switches[n].ports} "S-{hexadecimal}"\t\t# "{descriptions[n]}" '
                f"{'enhanced' if who is None or who.enhanced_port0 else 'base'} port 0 lid {lids[n]} lmc 0"
            ]
        else:
            card = who.ports if who is not None else 1
            word, letter = ("Rt", "R") if _is_router(who) else ("Ca", "H")
            out += [f"{word.lower()}guid=0x{guids[n]:x}"]
            out += [f'{word}\t{card} "{letter}-{hexadecimal}"\t\t# "{descriptions[n]}"']
        said = {port: f"{width}x{speed}" for port, width, speed in who.links} if who is not None else {}
        for port, peer, peer_port, rate_name in sorted(links.get(n, [])):
            speed = said.get(port, rate_name)
            kind = "S" if peer < first else "R" if _is_router(known[peer]) else "H"
            own = "" if n < first else f"({ports[n]:x}) "
            far = f"({ports[peer]:x}) " if peer >= first else ""
            lid = "" if n < first else f"lid {lids[n]} lmc 0 "
            out.append(
                f'[{port}]{own}\t"{kind}-{guids[peer]:016x}"[{peer_port}]{far}\t\t'
                f'# {lid}"{descriptions[peer]}" lid {lids[peer]} {speed}'
            )
        out.append("")
    return "\n".join(out)


def _is_router(who: Identity | None) -> bool:
    return who is not None and who.router


def _speed_names() -> dict[int, str]:
    """Width and speed by data rate; four lanes where several give the same."""
    found: dict[int, str] = {}
    for width in (1, 2, 8, 12, 4):
        for speed in catalog.names("infiniband"):
            if width in catalog.infiniband(speed).widths:
                found[catalog.infiniband_rate(speed, width)] = f"{width}x{speed}"
    return found


def to_dot(blueprint: Blueprint) -> str:
    """The network as a Graphviz graph: one node a host, parallel cables as one edge with their number."""
    jacks = Jacknames(blueprint)
    edges: dict[tuple[str, str, int], int] = {}
    for a, _, b, _, rate, _ in _rows(blueprint):
        key = (jacks.names[a], jacks.names[b], rate)
        edges[key] = edges.get(key, 0) + 1
    out = ["graph fabric {", "  rankdir=BT;"]
    tiers: dict[int, list[str]] = {}
    for switch in blueprint.switches:
        tiers.setdefault(switch.tier, []).append(switch.name)
    for tier, names in sorted(tiers.items()):
        rank = "rank=same; " if tier > 0 else ""
        out.append(f"  {{ {rank}node [shape=box]; {'; '.join(json.dumps(name) for name in names)} }}")
    out += [f"  {json.dumps(host.name)};" for host in blueprint.hosts]
    for (lower, upper, rate), count in edges.items():
        label = (f"{count} x " if count > 1 else "") + format_rate(rate)
        out.append(f"  {json.dumps(upper)} -- {json.dumps(lower)} [label={json.dumps(label)}];")
    return "\n".join([*out, "}"]) + "\n"
