"""Why a setting is as it is, and who says so: one entry for each, that writers put beside what they write."""

from __future__ import annotations

from fabrictwin.base.records import record


@record
class Reason:
    """A sentence and its source."""

    text: str
    source: str

    def __str__(self) -> str:
        return f"{self.text} [{self.source}]"


_PFC = "IEEE 802.1Qbb"
_SONIC = "SONiC qos_config.j2"
_SCRIPT = "sonic-swss buffer_headroom_mellanox.lua"
_CUMULUS = "Cumulus Linux user guide, RoCE"
_REFERENCE = "NVUE command reference"
_MLX5 = "linux mlx5 port_buffer.c"
_MLNX = "NVIDIA MLNX_OFED guide, mlnx_qos"
_NCCL = "NCCL user guide, environment variables"
_OPENSM = "opensm(8)"
_IBTA = "InfiniBand Architecture"

REASONS: dict[str, Reason] = {
    # switches
    "hostname": Reason("the switch's name, by which neighbours and people know it", "the cluster's spec"),
    "platform": Reason("the box, which names its chip: cells and delays of the headroom's formula", "catalog"),
    "mac": Reason("an address of this switch alone, locally administered", "IEEE 802 clause 8"),
    "role": Reason("leaf or spine, by its place in the fabric", "the cluster's spec"),
    "frr_management": Reason(
        "FRR is configured from the tables of BGP below", "SONiC FRR management framework HLD"
    ),
    "buffer_model": Reason("pools and profiles are given, not reckoned by the switch", "SONiC buffer HLD"),
    "port": Reason("a port with a cable is up at the cable's rate", "the cluster's spec"),
    "breakout": Reason("a cage has several ports: the box has fewer cages than cables", _REFERENCE),
    "fec": Reason("PAM4 lanes need RS-FEC", "IEEE 802.3 clause 91, 119"),
    "mtu": Reason("one MTU on every hop; 4096 bytes of RDMA and its headers fit", "Linux mlx5, RoCE MTU"),
    "peer": Reason("what is at the cable's other end; checked against LLDP", "the cluster's spec"),
    "cable": Reason("headroom grows with the cable's length", _SCRIPT),
    "traffic_pattern": Reason(
        "the packets that headroom is reckoned for: all of the smallest, the worst", _SCRIPT
    ),
    "over_subscribe": Reason("headroom is each port's own, none is shared", "SONiC shared headroom pool HLD"),
    "pool": Reason("what headroom and reserves leave of the chip's buffer is shared", "SONiC buffer HLD"),
    "egress_pool": Reason(
        "lossless packets are let go only by the ingress: no limit at egress", "SONiC buffers.json"
    ),
    "group_size": Reason("XON's part of the chip's pipeline, and the headroom", _SCRIPT),
    "xoff": Reason("bytes that still come after XOFF: cable, response, the frames in the way", _SCRIPT),
    "xoff_tomahawk": Reason("bytes that still come after XOFF", "SONiC pg_profile_lookup.ini"),
    "xoff_threshold": Reason(
        "a pause once so much of the port's buffer is taken: the rest of it is the headroom",
        "Cumulus Linux user guide, Quality of Service",
    ),
    "xon_offset": Reason(
        "the peer goes on once a frame less is taken than at XOFF", "Cumulus Linux user guide, Quality of Service"
    ),
    "xon": Reason("the peer goes on once the group is this much below its threshold", _SCRIPT),
    "alpha": Reason(
        "one port may take this multiple of what is free: ECN is to mark before XOFF", "SONiC buffer HLD"
    ),
    "lossy_group": Reason("all other traffic is dropped where the pool is short", "SONiC buffers.json"),
    "queue_buffer": Reason("the queue's share of its egress pool", "SONiC buffers.json"),
    "ingress_profiles": Reason("which profiles a port's ingress may use", "SONiC buffer HLD"),
    "trust": Reason("packets are routed and untagged: their class is their DSCP, not a VLAN's priority", _CUMULUS),
    "dscp_map": Reason("RoCE and CNPs into their classes, everything else into class 0", _SONIC),
    "tc_group": Reason("the class's priority group is the one that has headroom", _SONIC),
    "tc_queue": Reason("a class waits in the queue of its number", _SONIC),
    "pfc_queue": Reason("a pause of a priority stops the queue of its number", _SONIC),
    "pfc_group": Reason("a full group pauses the priority of its number", _SONIC),
    "pfc_enable": Reason("the priority that carries RoCE is paused, not dropped; no other is", _PFC),
    "lossy": Reason("no priority is paused: RoCE recovers from loss by itself", "the cluster's spec"),
    "qos_map": Reason("the port takes these maps", _SONIC),
    "ecn": Reason("marks below the pause's threshold, so that senders slow down before they are stopped", _SONIC),
    "scheduler_cnp": Reason("CNPs are few and urgent: strict priority", _CUMULUS),
    "scheduler_roce": Reason("RoCE and the rest share by weight", _CUMULUS),
    "watchdog": Reason(
        "a queue that is paused without end is dropped, so that a storm ends at one port", "SONiC PFC watchdog HLD"
    ),
    "watchdog_poll": Reason("how often queues are looked at", "SONiC PFC watchdog HLD"),
    "lldp": Reason("neighbours tell who they are, so that cables are checked", "IEEE 802.1AB"),
    "loopback": Reason("the address that routing knows the switch by", "RFC 7938"),
    "asn": Reason("an AS for each leaf, one for all spines of a group", "RFC 7938"),
    "bgp": Reason(
        "routing by interface, over IPv6 link-local addresses: no address plan of links", "RFC 5549, RFC 8950"
    ),
    "multipath": Reason("all equal paths are used, whatever AS they go through", "RFC 7938"),
    "redistribute": Reason("hosts' subnets are told to the others", "RFC 7938"),
    "address": Reason("the gateway of the host behind this port", "the address plan of this cluster"),
    "roce": Reason("the lossless defaults of RoCE, which the lines below make explicit", _CUMULUS),
    "roce_lossy": Reason("RoCE without pauses", _CUMULUS),
    "pfc_profile": Reason("ports of one rate and length share a profile of PFC", _REFERENCE),
    "pfc_interface": Reason("the port takes this profile", _REFERENCE),
    "ecn_interface": Reason("the port marks by this profile", _REFERENCE),
    "nvue_apply": Reason("pending changes take effect", _REFERENCE),
    # hosts: adapters
    "host_guard": Reason("the script is for one host", "this file"),
    "keep_going": Reason(
        "a command that fails is named and stops no other; the script fails in the end", "bash(1)"
    ),
    "nic_trust": Reason("the adapter and the switch read the same field: DSCP", _MLNX),
    "nic_map": Reason("the DSCP leads to the priority that the switch pauses", _MLNX),
    "nic_pfc": Reason("the adapter pauses and is paused on the priority that the switch pauses", _MLNX),
    "nic_buffer": Reason(
        "a receive buffer of its own for the lossless priority: headroom, frame and cell fit", _MLX5
    ),
    "nic_cable": Reason("the driver sets XOFF for this length", _MLX5),
    "nic_ets": Reason("CNPs first, RoCE and the rest by weight, as on the switch", _MLNX),
    "nic_pause": Reason("global pause and PFC exclude each other", _PFC),
    "roce_mode": Reason("connections of rdma_cm are routed: RoCE v2", "rdma-core cma_roce_mode"),
    "tos": Reason("connections of rdma_cm carry RoCE's DSCP", "NVIDIA RoCE guide"),
    "traffic_class": Reason("queue pairs carry RoCE's DSCP, whatever program makes them", "NVIDIA RoCE guide"),
    "cnp": Reason("CNPs go by the class that the switch serves first", "NVIDIA DCQCN guide"),
    "ecn_host": Reason("DCQCN notices marks and reacts on RoCE's priority", "NVIDIA DCQCN guide"),
    "ring": Reason("the largest receive ring, so that bursts of other traffic are not dropped", "ethtool(8)"),
    "read_request": Reason("reads of 4 KB keep the PCIe link busy", "NVIDIA PCIe tuning guide"),
    "acs": Reason("peer-to-peer traffic is not sent up to the root complex", "NCCL troubleshooting"),
    "mlxconfig_link": Reason("the port speaks this link layer", "mlxconfig"),
    "mlxconfig_lldp": Reason(
        "the operating system, not the firmware, decides about PFC", "mlxconfig, LLDP_NB_DCBX"
    ),
    "mlxconfig_cc": Reason("congestion control is on for all priorities", "mlxconfig, ROCE_CC_PRIO_MASK"),
    "mlxconfig_order": Reason("ordering is relaxed where the program asks for it, never forced", "NCCL issue 531"),
    "mlxconfig_reads": Reason("as many reads in flight as PCIe needs", "nccl-tests issue 152"),
    "mlxconfig_sriov": Reason("no virtual functions on bare metal", "mlxconfig"),
    # hosts: system
    "netplan": Reason("address, MTU and route of the rail", "netplan reference"),
    "source_route": Reason(
        "packets leave by the adapter whose address they carry", "NVIDIA RoCE guide, multi-rail"
    ),
    "ipoib_mode": Reason(
        "datagram is offloaded by current adapters; connected is for old ones", "linux ipoib.rst"
    ),
    "ipoib_mtu": Reason("4096 of InfiniBand less 4 bytes of IPoIB's header; the partition allows it", "RFC 4391"),
    "arp": Reason("each interface answers only for its own address", "linux ip-sysctl.rst"),
    "rp_filter": Reason("several interfaces reach one subnet", "linux ip-sysctl.rst"),
    "socket_buffer": Reason("bootstrap and storage over TCP at these rates", "linux ip-sysctl.rst"),
    "backlog": Reason("bursts wait instead of being dropped", "linux ip-sysctl.rst"),
    "numa": Reason("pages stay where programs put them", "linux vm.rst"),
    "udev": Reason(
        "names follow the PCI slot, so that settings meet their adapter after a reboot", "systemd.link, udev(7)"
    ),
    "memlock": Reason("verbs registers memory, which is locked", "rdma-core README"),
    "nofile": Reason("a socket for each peer", "limits.conf(5)"),
    "module_rdma": Reason("verbs for this kind of adapter", "rdma-core"),
    "module_peermem": Reason("GPUDirect: adapters reach GPU memory", "NVIDIA GPUDirect RDMA guide"),
    "module_ipoib": Reason("IP over InfiniBand", "linux ipoib.rst"),
    "service_peermem": Reason("the module is there after a reboot", "NVIDIA GPUDirect RDMA guide"),
    "service_fabricmanager": Reason("NVSwitch needs it", "NVIDIA Fabric Manager guide"),
    "service_persistence": Reason("GPUs keep their state between jobs", "NVIDIA driver persistence"),
    "service_irq": Reason("interrupts stay where they were put", "NVIDIA performance tuning"),
    "service_lldpd": Reason("the switch sees who is there", "IEEE 802.1AB"),
    "service_opensm": Reason("the subnet has its manager elsewhere", _OPENSM),
    "service_adapters": Reason("the settings of adapters are set again at each boot", "systemd.service(5)"),
    "iommu": Reason("peer-to-peer traffic is not translated on bare metal", "NCCL troubleshooting"),
    "container_devices": Reason("verbs devices are there inside", "NVIDIA container guide"),
    "container_memlock": Reason("as the host's limit: memory is locked", "NCCL troubleshooting, Docker"),
    "container_shm": Reason(
        "NCCL's shared memory outgrows the 64 MB of a container", "NCCL troubleshooting, Docker"
    ),
    "container_network": Reason("adapters' GIDs belong to the host's network namespace", "NVIDIA container guide"),
    # NCCL
    "nccl_hca": Reason("exactly the compute adapters; without = mlx5_1 also takes mlx5_10", _NCCL),
    "nccl_tc": Reason("DSCP times four: the class that switches do not drop", _NCCL),
    "nccl_family": Reason("the GID is chosen of this family: RoCE v2 over IPv4, whatever its index", _NCCL),
    "nccl_socket": Reason("bootstrap over the management network", _NCCL),
    "nccl_timeout": Reason("2^22 times 4.096 us: a link may flap for some seconds", _NCCL),
    "nccl_sl": Reason("the service level of the fabric's QoS policy", _NCCL),
    "nccl_pkey": Reason("the partition's place in the adapter's table", _NCCL),
    "nccl_qps": Reason("several queue pairs spread over equal paths", _NCCL),
    # InfiniBand
    "osm_engine": Reason("the engine that fits the fabric's shape", _OPENSM),
    "osm_roots": Reason("the top of the tree, which up/down and fat-tree routing go by", _OPENSM),
    "osm_cn": Reason("compute adapters, between which fat-tree routing balances", _OPENSM),
    "osm_partitions": Reason("who may talk to whom", _OPENSM),
    "osm_lmc": Reason("2^lmc LIDs an adapter: paths for NCCL and failover", _OPENSM),
    "osm_qos": Reason("service levels, lanes and arbitration are programmed", _OPENSM),
    "osm_vls": Reason("as many lanes as the switches have", _IBTA + " 7.6"),
    "osm_sl2vl": Reason("service levels share the lanes that there are", _IBTA + " 7.6.6"),
    "osm_vlarb": Reason("storage does not starve, compute has most", _IBTA + " 7.6.9"),
    "osm_timeout": Reason("how long a packet may be under way", _IBTA + " 9.7"),
    "osm_sweep": Reason("changes are noticed by traps, this is a safety net", _OPENSM),
    "osm_prefix": Reason("the subnet's prefix; subnets that share hosts need different ones", _IBTA + " 4.1"),
    "osm_priority": Reason("the manager that is to be master", _OPENSM),
    "osm_hoq": Reason(
        "a packet that cannot leave is dropped in the end, so that a stuck host does not stop others",
        _IBTA + " 18.2.5",
    ),
    "osm_log": Reason("where the manager says what it did", _OPENSM),
    "partition_default": Reason(
        "everybody is a member: management, IPoIB, and jobs without a partition of their own", _OPENSM
    ),
    "partition_compute": Reason("hosts of the job are full members", _OPENSM),
    "partition_mtu": Reason("code 5 is 4096: the group's MTU for IPoIB", _IBTA + " 15.2.5"),
    "qos_level": Reason("the service level of this kind of traffic", "OpenSM QoS management"),
    "qos_group": Reason("who a rule is about", "OpenSM QoS management"),
    "qos_match": Reason("which traffic it is", "OpenSM QoS management"),
    # Slurm, Kubernetes
    "slurm_leaf": Reason("nodes under one leaf are placed together", "topology.conf(5)"),
    "slurm_spine": Reason("which leaves are joined", "topology.conf(5)"),
    "slurm_gres": Reason("GPUs of a node, by the type that jobs ask for", "gres.conf(5)"),
    "slurm_plugin": Reason("the scheduler goes by topology.conf", "slurm.conf(5)"),
    "k8s_policy": Reason(
        "drivers and device plugins on every node with adapters", "network-operator NicClusterPolicy"
    ),
    "k8s_network": Reason("a second interface for pods, with an address of the rail", "network-operator"),
    "k8s_addresses": Reason("addresses of a rail for pods, some for each host", "nvidia-k8s-ipam IPPool"),
    "k8s_sriov": Reason("virtual functions of the rail's adapter, with RDMA", "sriov-network-operator"),
    "k8s_pod": Reason("memory is locked; adapters and GPUs come from the plugins", "network-operator"),
}


def reason(key: str) -> Reason:
    """Return the reason of a setting; a KeyError is a defect of a writer."""
    return REASONS[key]
