"""What a host of a cluster is to be configured to: its adapters, its kernel, its containers, NCCL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabrictwin import catalog
from fabrictwin.base.records import record
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.configuration.headroom import mlx5
from fabrictwin.configuration.model.cluster import Intent
from fabrictwin.configuration.model.hosts import Adapter, AdapterLink, AdapterQos, Card, Driver, Host, Kernel, Roce
from fabrictwin.configuration.policy import addresses
from fabrictwin.configuration.policy.chips import Box
from fabrictwin.configuration.policy.switch_policy import MTU, cable_metres, port_name
from fabrictwin.configuration.policy.wiring import End

FRAME_MORE = 22  # Ethernet's header, a VLAN tag, the check sequence: MLX5E_ETH_HARD_MTU
KIB = 1024
SMALL_BUFFER = 32 * KIB
IPOIB_MTU = 4092  # a datagram of 4096 less the header of RFC 4391
ROCE_V2 = 2
ECN_CAPABLE = 2  # ECT(0)
TIMEOUT, QUEUE_PAIRS = 22, 4
RING = 8192
READ_REQUEST = 4096

_SYSCTL = {
    "net.core.rmem_max": "268435456",
    "net.core.wmem_max": "268435456",
    "net.core.netdev_max_backlog": "250000",
    "net.ipv4.conf.all.arp_ignore": "1",
    "net.ipv4.conf.all.arp_announce": "2",
    "net.ipv4.conf.all.rp_filter": "2",
    "kernel.numa_balancing": "0",
}
_LIMITS = {
    "* soft memlock": "unlimited",
    "* hard memlock": "unlimited",
    "* soft nofile": "1048576",
    "* hard nofile": "1048576",
}
_CONTAINER = (
    "--device=/dev/infiniband",
    "--ulimit memlock=-1:-1",
    "--shm-size=16g",
    "--network=host",
)


@record
class Racked:
    """A host of a blueprint: its number, its adapters' nodes and what each is plugged into."""

    blueprint: Blueprint
    number: int
    first_adapter: int  # of all adapters
    ends: Mapping[int, Sequence[End]]  # by node
    os: str  # of the switches, which names their ports
    boxes: Sequence[Box | None]  # of the switches


def host(racked: Racked, intent: Intent) -> Host:
    """Return a host's configuration."""
    blueprint = racked.blueprint
    site = blueprint.hosts[racked.number]
    infiniband = blueprint.technology == "infiniband"
    adapters = {}
    plugged = 0
    for k, device in enumerate(site.nics):
        found = racked.ends.get(len(blueprint.switches) + racked.first_adapter + k)
        if not found:
            continue
        name = f"ib{plugged}" if infiniband else f"eth{plugged + 1}"
        plugged += 1
        make = _infiniband if infiniband else _ethernet
        adapters[device] = make(racked, k, found[0], name, intent)
    gpus = bool(site.type) and catalog.host(site.type).nodes.gpu > 0
    nvswitch = bool(site.type) and catalog.host(site.type).nodes.nvswitch > 0
    return Host(
        name=site.name,
        adapters=adapters,
        management=addresses.management(racked.number),
        kernel=Kernel(
            sysctl=_SYSCTL, limits=_LIMITS, modules=_modules(infiniband, gpus), kernel_arguments=("iommu=pt",)
        ),
        services=_services(gpus=gpus, nvswitch=nvswitch, infiniband=infiniband),
        container=(*(["--gpus all"] if gpus else []), *_CONTAINER),
        nccl=_nccl(adapters, intent, infiniband),
    )


def _modules(infiniband: bool, gpus: bool) -> tuple[str, ...]:
    own = ("mlx5_ib", "ib_umad", "ib_ipoib", "rdma_ucm") if infiniband else ("mlx5_ib", "rdma_ucm")
    return (*own, *(["nvidia_peermem"] if gpus else []))


def _services(*, gpus: bool, nvswitch: bool, infiniband: bool) -> dict[str, bool]:
    services = {"irqbalance": False, "fabric-adapters": True}
    if gpus:
        services["nvidia-persistenced"] = True
    if nvswitch:
        services["nvidia-fabricmanager"] = True
    if infiniband:
        services["opensm"] = False
    else:
        services["lldpd"] = True
    return services


def _peer(racked: Racked, end: End) -> str:
    other = racked.blueprint.switches[end.peer]
    box = racked.boxes[end.peer]
    if box is None:
        return f"{other.name}/{end.peer_port}"
    return f"{other.name}/{port_name(racked.os, box, racked.ends[end.peer], end.peer_port, end.rate_bps)}"


def _ethernet(racked: Racked, k: int, end: End, name: str, intent: Intent) -> Adapter:
    metres = cable_metres(end.length_mm)
    _gateway, address = addresses.link(racked.first_adapter + k)
    lossless = intent.lossless
    buffers, placed = _buffers(end, metres, intent) if lossless else ((), ())
    tc_of = {intent.priority: 1, intent.cnp_priority: 2}
    every = frozenset({intent.priority})
    return Adapter(
        device=racked.blueprint.hosts[racked.number].nics[k],
        netdev=name,
        link=AdapterLink(
            technology="ethernet", address=f"{address}/31", mtu_bytes=MTU, peer=_peer(racked, end), cable_m=metres
        ),
        qos=AdapterQos(
            trust="dscp",
            pfc=every if lossless else frozenset(),
            dscp_to_priority={intent.dscp: intent.priority, intent.cnp_dscp: intent.cnp_priority},
            buffer_bytes=buffers,
            priority_to_buffer=placed,
            scheduler=("ets", "ets", "strict", "ets", "ets", "ets", "ets", "ets"),
            weights=(50, 50, 0, 0, 0, 0, 0, 0),
            priority_to_tc=tuple(tc_of.get(priority, 0) for priority in range(8)),
        ),
        driver=Driver(global_pause=False, ring_rx=RING, ring_tx=RING),
        roce=Roce(
            roce_mode=ROCE_V2,
            traffic_class=intent.dscp * 4 + ECN_CAPABLE,
            tos=intent.dscp * 4 + ECN_CAPABLE,
            cnp_dscp=intent.cnp_dscp,
            cnp_priority=intent.cnp_priority,
            ecn_notification=every,
            ecn_reaction=every,
        ),
        card=Card(
            firmware={
                "LINK_TYPE_P1": "ETH",
                "LLDP_NB_DCBX_P1": "FALSE",
                "ROCE_CC_PRIO_MASK_P1": "255",
                "PCI_WR_ORDERING": "per_mkey",
                "MAX_ACC_OUT_READ": "44",
            },
            max_read_request=READ_REQUEST,
            acs_disabled=True,
        ),
    )


def _buffers(end: End, metres: int, intent: Intent) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two receive buffers: one for all else, one for the lossless priority, of whole kilobytes."""
    least = mlx5.least_buffer(end.rate_bps // 10**6, metres, MTU + FRAME_MORE)
    lossless = -(-least // KIB) * KIB
    placed = tuple(1 if priority == intent.priority else 0 for priority in range(8))
    return (SMALL_BUFFER, lossless, 0, 0, 0, 0, 0, 0), placed


def _infiniband(racked: Racked, k: int, end: End, name: str, intent: Intent) -> Adapter:
    host, adapter = racked.number + 1, k + 1
    return Adapter(
        device=racked.blueprint.hosts[racked.number].nics[k],
        netdev=name,
        link=AdapterLink(
            technology="infiniband",
            address=f"10.{adapter % 250 + 1}.{host // 256}.{host % 256}/16",
            mtu_bytes=IPOIB_MTU,
            peer=f"{racked.blueprint.switches[end.peer].name}/{end.peer_port}",
            ipoib_mode="datagram",
        ),
        card=Card(
            firmware={"LINK_TYPE_P1": "IB", "PCI_WR_ORDERING": "per_mkey", "MAX_ACC_OUT_READ": "44"},
            max_read_request=READ_REQUEST,
            acs_disabled=True,
        ),
    )


def _nccl(adapters: Mapping[str, Adapter], intent: Intent, infiniband: bool) -> dict[str, str]:
    if not adapters:
        return {}
    said = {
        "NCCL_IB_HCA": "=" + ",".join(adapters),
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_TIMEOUT": str(TIMEOUT),
        "NCCL_IB_QPS_PER_CONNECTION": str(QUEUE_PAIRS),
    }
    if infiniband:
        return said | {"NCCL_IB_SL": "0", "NCCL_IB_PKEY": "0"}
    return said | {"NCCL_IB_TC": str(intent.dscp * 4 + ECN_CAPABLE), "NCCL_IB_ADDR_FAMILY": "AF_INET"}
