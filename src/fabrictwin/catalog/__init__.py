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
    define_host,
    defined_hosts,
    entries,
    ethernet,
    ethernet_rate,
    fabric,
    failures,
    find,
    framework,
    gemm_efficiency,
    gpu,
    headers,
    host,
    host_stack,
    infiniband,
    infiniband_rate,
    link,
    medium,
    names,
    nic,
    nvlink,
    pcie,
    port_rate,
    reckoned_rate,
    server_power,
    sources,
    switch,
    verbs_device,
)
from fabrictwin.catalog.devices import FabricPreset, Nic, PortMode, Switch, VerbsDevice
from fabrictwin.catalog.entry_kinds import KINDS, figures
from fabrictwin.catalog.failures import FailureLog, FailureRate
from fabrictwin.catalog.figures import Entry, Figure, Source
from fabrictwin.catalog.gpus import Gpu
from fabrictwin.catalog.host_stack import Framework, HostStack
from fabrictwin.catalog.hosts import Chip, Host, HostEdge
from fabrictwin.catalog.links.host_links import CpuLink, LinkType, Nvlink, Pcie
from fabrictwin.catalog.links.link_speeds import Ethernet, Headers, Infiniband, Medium

__all__ = [
    "KINDS",
    "Chip",
    "CpuLink",
    "Entry",
    "Ethernet",
    "FabricPreset",
    "FailureLog",
    "FailureRate",
    "Figure",
    "Framework",
    "Gpu",
    "Headers",
    "Host",
    "HostEdge",
    "HostStack",
    "Infiniband",
    "LinkType",
    "Medium",
    "Nic",
    "Nvlink",
    "Pcie",
    "PortMode",
    "Source",
    "Switch",
    "VerbsDevice",
    "cable_latency_ps",
    "chip",
    "cpu_link",
    "define_host",
    "defined_hosts",
    "entries",
    "ethernet",
    "ethernet_rate",
    "fabric",
    "failures",
    "figures",
    "find",
    "framework",
    "gemm_efficiency",
    "gpu",
    "headers",
    "host",
    "host_stack",
    "infiniband",
    "infiniband_rate",
    "link",
    "medium",
    "names",
    "nic",
    "nvlink",
    "pcie",
    "port_rate",
    "reckoned_rate",
    "server_power",
    "sources",
    "switch",
    "verbs_device",
]
