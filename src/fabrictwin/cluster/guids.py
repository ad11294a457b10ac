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
