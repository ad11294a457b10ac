"""Families of formats: by which lines each is recognised, and what reads it.

Adding a format: a `LineReader` in the folder of its kind, and its row here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from fabrictwin.base.records import record
from fabrictwin.diagnosis.evidence import Sink
from fabrictwin.diagnosis.literals import alternatives, fewest, needed
from fabrictwin.diagnosis.readers.fabric import (
    adapters,
    counters,
    ethernet,
    ibdiagnet_log,
    links,
    mlxlink,
    neighbours,
    nvue,
    sonic,
    switch_health,
    transceivers,
)
from fabrictwin.diagnosis.readers.host import (
    dcgm,
    gpu_tests,
    interface_counters,
    interfaces,
    ipmi,
    kernel_log,
    kubernetes_nodes,
    limits,
    nvidia_csv,
    nvidia_smi,
    pci,
    ping,
)
from fabrictwin.diagnosis.readers.job import benchmarks, launchers, perftest, ras, topology_xml, verbs_programs
from fabrictwin.diagnosis.readers.line_reader import LineReader


@record
class Family:
    """A family of formats. `opens` is found in lines that it may begin with."""

    name: str
    opens: str
    make: Callable[[Sink], LineReader]


FAMILIES = (
    Family("nccl-tests", benchmarks.OPENS_NCCL_TESTS, benchmarks.NcclTests),
    Family("perftest", perftest.OPENS, perftest.Perftest),
    Family("nccl-xml", topology_xml.OPENS, topology_xml.TopologyXml),
    Family("nccl-ras", ras.OPENS, ras.RasReport),
    Family("ibnetdiscover", links.OPENS, links.Links),
    Family("sminfo", links.OPENS_MANAGER, links.ManagerInfo),
    Family("ibportstate", links.OPENS_PORT, links.PortInfo),
    Family("perfquery", counters.OPENS_PERFQUERY, counters.Perfquery),
    Family("ibqueryerrors", counters.OPENS_ERRORS, counters.QueryErrors),
    Family("ibdiagnet", counters.OPENS_CSV, counters.DiagnetCsv),
    Family("ibdiagnet-log", ibdiagnet_log.OPENS, ibdiagnet_log.DiagnetLog),
    Family("ibstat", adapters.OPENS_IBSTAT, adapters.Ibstat),
    Family("ibstatus", adapters.OPENS_IBSTATUS, adapters.Ibstatus),
    Family("ibv_devinfo", adapters.OPENS_DEVINFO, adapters.Devinfo),
    Family("ibv_devices", adapters.OPENS_DEVICES, adapters.Devices),
    Family("show_gids", adapters.OPENS_GIDS, adapters.Gids),
    Family("ibswinfo", adapters.OPENS_SWITCH, adapters.SwitchInfo),
    Family("sysfs", adapters.OPENS_SYSFS, adapters.SysfsTree),
    Family("mlxlink", mlxlink.OPENS, mlxlink.Mlxlink),
    Family("ethtool", ethernet.OPENS_ETHTOOL, ethernet.Ethtool),
    Family("transceivers", transceivers.OPENS, transceivers.Transceivers),
    Family("mlnx_qos", ethernet.OPENS_QOS, ethernet.MlnxQos),
    Family("rdma", ethernet.OPENS_RDMA, ethernet.Rdma),
    Family("dcb", ethernet.OPENS_DCB, ethernet.Dcb),
    Family("sonic-log", sonic.OPENS_LOG, sonic.SonicLog),
    Family("bgp-summary", neighbours.OPENS_SUMMARY, neighbours.BgpSummary),
    Family("neighbours", neighbours.OPENS_NEIGHBOUR, neighbours.Neighbours),
    Family("ospf-neighbours", neighbours.OPENS_OSPF, neighbours.OspfNeighbours),
    Family("junos-peers", neighbours.OPENS_JUNOS, neighbours.JunosPeers),
    Family("sonic-health", switch_health.OPENS, switch_health.SystemHealth),
    Family("port-channels", switch_health.OPENS_CHANNELS, switch_health.PortChannels),
    Family("sonic-show", sonic.OPENS, sonic.Sonic),
    Family("nvue", nvue.OPENS, nvue.Nvue),
    Family("nvidia-smi-topo", nvidia_smi.OPENS_TOPOLOGY, nvidia_smi.TopologyMatrix),
    Family("nvlink-status", nvidia_smi.OPENS_NVLINK, nvidia_smi.NvlinkStatus),
    Family("nvidia-smi", nvidia_smi.OPENS_QUERY, nvidia_smi.Query),
    Family("dcgm", dcgm.OPENS, dcgm.Dcgm),
    Family("dcgm-metrics", dcgm.OPENS_METRICS, dcgm.Metrics),
    Family("lspci", pci.OPENS, pci.Lspci),
    Family("ip-link", interfaces.OPENS_LINK, interfaces.IpLink),
    Family("interface-counters", interface_counters.OPENS, interface_counters.InterfaceCounters),
    Family("bond", interfaces.OPENS_BOND, interfaces.Bond),
    Family("ipmi", ipmi.OPENS, ipmi.Ipmi),
    Family("smi-help", nvidia_csv.OPENS_HELP, nvidia_csv.Help),
    Family("smi-csv", nvidia_csv.OPENS, nvidia_csv.QueryCsv),
    Family("ping", ping.OPENS, ping.Ping),
    Family("p2p-bandwidth", gpu_tests.OPENS_PEERS, gpu_tests.PeerBandwidth),
    Family("gpu-copies", gpu_tests.OPENS_COPIES, gpu_tests.GpuCopies),
    Family("gpu-burn", gpu_tests.OPENS_BURN, gpu_tests.GpuBurn),
    Family("kubernetes-nodes", kubernetes_nodes.OPENS, kubernetes_nodes.KubernetesNodes),
    Family("host-limits", limits.OPENS, limits.Limits),
    Family(verbs_programs.NAME, verbs_programs.OPENS, verbs_programs.VerbsPrograms),
    Family("launcher", launchers.OPENS, launchers.Launchers),
    Family("fabric-manager", kernel_log.OPENS_MANAGER, kernel_log.KernelLog),
    Family("kernel-log", kernel_log.OPENS, kernel_log.KernelLog),
)


# families that take any line, or begin as lines of others do: told only where nothing else is
_LAST = frozenset(("launcher", "fabric-manager", "kernel-log"))


@record
class _Openers:
    """Beginnings of families: those that stand at a line's beginning, and those that are found anywhere in it."""

    families: tuple[Family, ...]
    begins: re.Pattern[str]
    within: re.Pattern[str]
    needs: tuple[str, ...]  # texts, in lower case, of which lines that hold one of `within` hold one

    def of(self, text: str) -> Family | None:
        """The family whose beginning stands first in the line; of several the first in order."""
        found = [self.begins.match(text)]
        lower = text.lower()
        if not self.needs or any(map(lower.__contains__, self.needs)):
            found.append(self.within.search(text))
        return min(
            ((one.start(), self.families[int((one.lastgroup or "f0")[1:])]) for one in found if one),
            key=lambda one: (one[0], self.families.index(one[1])),
            default=(0, None),
        )[1]


@cache
def _openers(last: bool) -> _Openers:
    families = tuple(family for family in FAMILIES if (family.name in _LAST) is last)
    begins: list[str] = []
    within: list[str] = []
    needs: list[frozenset[str]] = []
    for number, family in enumerate(families):
        opens = alternatives(family.opens)
        at_beginning = [one for one in opens if one.startswith("^")]
        anywhere = [one for one in opens if not one.startswith("^")]
        for where, ones in ((begins, at_beginning), (within, anywhere)):
            if ones:
                where.append(f"(?P<f{number}>{'|'.join(ones)})")
        needs += [needed(one) for one in anywhere]
    return _Openers(
        families,
        re.compile("|".join(begins)),
        re.compile("|".join(within)),
        fewest(frozenset().union(*needs)) if all(needs) else (),
    )


def family_of(text: str) -> Family | None:
    """The family whose beginning a line is; None where it is none's."""
    return _openers(False).of(text[:2000]) or _openers(True).of(text[:2000])
