"""What the links did: utilisation, the busiest ones, bytes by kind of link.

Utilisation is payload over what the link could have carried in the whole run: `tx_bytes * 8` over its payload
rate times the run's length. A link at 30% over a step may well have been full while it mattered.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import F64, I64
from fabrictwin.base.units import PS_PER_S
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, LinkKind
from fabrictwin.trace.trace import OPTIONAL_COUNTERS, Trace

KIND_NAMES = {
    LinkKind.NVLINK: "NVLink",
    LinkKind.PCIE: "PCIe",
    LinkKind.CPU: "CPU",
    LinkKind.INFINIBAND: "InfiniBand",
    LinkKind.ETHERNET: "Ethernet",
}


def utilisation(fabric: Fabric, trace: Trace) -> F64:
    """[P] share of the link's payload rate that was used; 0 where nothing is plugged in or no time passed."""
    able = fabric.port_payload_bps * (trace.end_ps / PS_PER_S)
    used = np.zeros(fabric.ports)
    np.divide(trace.counters.tx_bytes * 8.0, able, out=used, where=able > 0)
    return used


def carrying(fabric: Fabric, trace: Trace) -> I64:
    """Ports that sent anything."""
    return np.flatnonzero((trace.counters.tx_bytes > 0) & (fabric.port_peer != NONE))


def busiest(fabric: Fabric, trace: Trace, count: int = 10) -> I64:
    """The busiest links of the network; of the insides of hosts where the network carried nothing.

    Inside hosts every GPU's links tend to do the same, so they would fill the list with one figure.
    Ties go to the lower port number.
    """
    ports = carrying(fabric, trace)
    network = ports[np.isin(fabric.port_kind[ports], NETWORK)]
    ports = network if len(network) else ports
    used = utilisation(fabric, trace)[ports]
    return ports[np.argsort(-used, kind="stable")[:count]]


def by_kind(fabric: Fabric, trace: Trace) -> list[dict[str, object]]:
    """Per kind of link: how many, how many carried anything, bytes, mean and greatest utilisation."""
    used = utilisation(fabric, trace)
    rows: list[dict[str, object]] = []
    for kind in LinkKind:
        ports = np.flatnonzero((fabric.port_kind == kind) & (fabric.port_peer != NONE))
        active = ports[trace.counters.tx_bytes[ports] > 0]
        if not len(active):
            continue
        top = int(active[np.argmax(used[active])])
        rows.append(
            {
                "kind": KIND_NAMES[kind],
                "links": len(ports),
                "links_used": len(active),
                "tx_bytes": int(trace.counters.tx_bytes[ports].sum()),
                "mean_utilisation_of_used": round(float(used[active].mean()), 6),
                "max_utilisation": round(float(used[top]), 6),
                "busiest": fabric.link_name(top),
            }
        )
    return rows


def not_modelled(trace: Trace) -> list[str]:
    """Things that this run's fidelity did not count."""
    return [text for name, text in OPTIONAL_COUNTERS.items() if getattr(trace.counters, name) is None]
