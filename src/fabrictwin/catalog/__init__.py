"""Hardware facts as data: GPUs, NICs, switches, links, hosts, each figure with its source.

The facts are the YAML files in `data/`; this room only reads, checks and answers. Rates are int bits per
second, sizes int bytes, times int picoseconds, lengths int millimetres, throughputs float FLOP/s. A lane's
data rate is computed from its signalling rate and line code, never written down.

Nothing is read before the first question; every answer is remembered, so the models are shared and frozen.
"""

from __future__ import annotations

from fabrictwin.catalog.answers import (
    cable_latency_ps,
    chip,
    cpu_link,
    entries,
    ethernet,
    ethernet_rate,
    find,
    gemm_efficiency,
    gpu,
    headers,
    host,
    infiniband,
    infiniband_rate,
    link,
    medium,
    names,
    nic,
    nvlink,
    pcie,
    sources,
    switch,
)
from fabrictwin.catalog.links import LinkType
from fabrictwin.catalog.models import (
    KINDS,
    Chip,
    CpuLink,
    Entry,
    Ethernet,
    Figure,
    Gpu,
    Headers,
    Host,
    HostEdge,
    Infiniband,
    Medium,
    Nic,
    Nvlink,
    Pcie,
    Source,
    Switch,
    figures,
)

__all__ = [
    "KINDS",
    "Chip",
    "CpuLink",
    "Entry",
    "Ethernet",
    "Figure",
    "Gpu",
    "Headers",
    "Host",
    "HostEdge",
    "Infiniband",
    "LinkType",
    "Medium",
    "Nic",
    "Nvlink",
    "Pcie",
    "Source",
    "Switch",
    "cable_latency_ps",
    "chip",
    "cpu_link",
    "entries",
    "ethernet",
    "ethernet_rate",
    "figures",
    "find",
    "gemm_efficiency",
    "gpu",
    "headers",
    "host",
    "infiniband",
    "infiniband_rate",
    "link",
    "medium",
    "names",
    "nic",
    "nvlink",
    "pcie",
    "sources",
    "switch",
]
