"""GUIDs of a blueprint's network nodes: those that it has; for the rest invented ones, the same every time."""

from __future__ import annotations

from fabrictwin.cluster.blueprint import Blueprint

# locally administered, so that they are no vendor's; room between them for GUIDs of ports, which management
# derives from the node's
INVENTED = 0x0200_00FF_FE00_0000
APART = 16


def node_guids(blueprint: Blueprint) -> list[int]:
    """GUIDs of switches, then adapters host by host, then aggregation nodes: as cables count nodes."""
    given = [site.guid for site in blueprint.switches]
    given += [guid for host in blueprint.hosts for guid in (host.guids or (0,) * len(host.nics))]
    given += [site.guid for site in blueprint.aggregations]
    taken = set(given)
    guids, invented = [], INVENTED
    for guid in given:
        if not guid:
            while any(invented + k in taken for k in range(APART)):
                invented += APART
            guid, invented = invented, invented + APART
        guids.append(guid)
    return guids


def port_guids(blueprint: Blueprint) -> list[int]:
    """GUIDs of ports, in the order of `node_guids`: a switch's own; else as discovered, or the node's plus 1.

    Where that number is another node's, an adapter's port has its node's.
    """
    guids = node_guids(blueprint)
    first, taken = len(blueprint.switches), set(guids)
    invented = [g if n < first or g + 1 in taken else g + 1 for n, g in enumerate(guids)]
    known = [blueprint.identities.get(guid) for guid in guids]
    return [who.port_guid if who else guid for who, guid in zip(known, invented, strict=True)]
