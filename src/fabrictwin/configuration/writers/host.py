"""A host's files: a script for its adapters, netplan and nmcli, sysctl, limits, modules, containers, NCCL.

Formats: mlnx_qos, cma_roce_mode and mlxconfig of NVIDIA's drivers, ethtool(8), setpci(8), netplan, nmcli(1),
sysctl.d(5), limits.conf(5), modules-load.d(5), udev(7), systemd.service(5), nccl.conf of NCCL's user guide.
"""

from __future__ import annotations

from collections.abc import Iterable

from fabrictwin.configuration.model.hosts import Adapter, Host
from fabrictwin.configuration.writers.files import Commented, WrittenFile

UNIT = "fabric-adapters"
SCRIPT = f"{UNIT}.sh"
RAILS = "10.64.0.0/10"  # all links to hosts
FIRST_TABLE = 101
PAUSE_AS_IS, RING_AS_IS = 78, 80  # how ethtool's ioctl path ends where nothing had to be changed (ethtool.c)
_SYSCTL = {
    "net.core.rmem_max": "socket_buffer",
    "net.core.wmem_max": "socket_buffer",
    "net.core.netdev_max_backlog": "backlog",
    "net.ipv4.conf.all.arp_ignore": "arp",
    "net.ipv4.conf.all.arp_announce": "arp",
    "net.ipv4.conf.all.rp_filter": "rp_filter",
    "kernel.numa_balancing": "numa",
}
_NCCL = {
    "NCCL_IB_HCA": "nccl_hca",
    "NCCL_SOCKET_IFNAME": "nccl_socket",
    "NCCL_IB_TIMEOUT": "nccl_timeout",
    "NCCL_IB_QPS_PER_CONNECTION": "nccl_qps",
    "NCCL_IB_TC": "nccl_tc",
    "NCCL_IB_ADDR_FAMILY": "nccl_family",
    "NCCL_IB_SL": "nccl_sl",
    "NCCL_IB_PKEY": "nccl_pkey",
}
_MODULE = {"nvidia_peermem": "module_peermem", "ib_ipoib": "module_ipoib"}
_SERVICE = {
    "irqbalance": "service_irq",
    "nvidia-persistenced": "service_persistence",
    "nvidia-fabricmanager": "service_fabricmanager",
    "opensm": "service_opensm",
    "lldpd": "service_lldpd",
    "fabric-adapters": "service_adapters",
}
_CONTAINER = {
    "--gpus": "container_devices",
    "--device": "container_devices",
    "--ulimit": "container_memlock",
    "--shm-size": "container_shm",
    "--network": "container_network",
}
_FIRMWARE = {
    "LINK_TYPE_P1": "mlxconfig_link",
    "LLDP_NB_DCBX_P1": "mlxconfig_lldp",
    "ROCE_CC_PRIO_MASK_P1": "mlxconfig_cc",
    "PCI_WR_ORDERING": "mlxconfig_order",
    "MAX_ACC_OUT_READ": "mlxconfig_reads",
}


def files(host: Host) -> list[WrittenFile]:
    """Return all files of a host."""
    folder = f"hosts/{host.name}"
    texts = {
        SCRIPT: adapters_script(host),
        "60-fabric.yaml": netplan(host),
        "fabric-nmcli.sh": nmcli(host),
        "90-fabric-sysctl.conf": sysctl(host),
        "90-fabric-limits.conf": limits(host),
        "fabric-modules.conf": modules(host),
        "70-fabric-names.rules": udev(host),
        "fabric-adapters.service": service(),
        "90-fabric-grub.cfg": grub(host),
        "fabric-container.args": container(host),
        "nccl.conf": nccl(host),
    }
    return [WrittenFile(f"{folder}/{name}", text, name.endswith(".sh")) for name, text in texts.items()]


def _script(host: Host) -> Commented:
    """Return the beginning of a shell script that only this host may run.

    What one command could not do stops no other: each that fails is named, and the script fails in the end.
    """
    out = Commented(beside=False)
    out.plain("#!/bin/bash")
    out.add("failed=0; trap 'echo \"line $LINENO failed: $BASH_COMMAND\" >&2; failed=1' ERR", "keep_going")
    out.add(
        f'[ "$(hostname -s)" = {host.name} ] || {{ echo "this is for {host.name}" >&2; exit 1; }}', "host_guard"
    )
    return out


def adapters_script(host: Host) -> str:
    """Return the commands for a host's adapters, to be run as root at every boot."""
    out = _script(host)
    for adapter in host.adapters.values():
        out.plain(
            "",
            f"# {adapter.device}, {adapter.netdev}" + (f", to {adapter.link.peer}" if adapter.link.peer else ""),
        )
        if adapter.link.technology == "ethernet":
            _ethernet(out, adapter)
        _pcie(out, adapter)
    if any(adapter.card.acs_disabled for adapter in host.adapters.values()):
        out.plain("")
        out.add('for bridge in $(lspci -d "*::0604" | cut -d" " -f1); do', "acs")
        out.plain('  setpci -s "$bridge" ECAP_ACS+6.w=0000 2>/dev/null || true', "done")
    out.plain("")
    for name, on in host.services.items():
        # the unit runs this script: were it started from here, it would wait for itself
        now = "" if name == UNIT else " --now"
        out.add(f"systemctl {'enable' if on else 'disable'}{now} {name}", _SERVICE.get(name, "service_adapters"))
    out.add("exit $failed", "keep_going")
    return out.text


def _list(values: Iterable[object]) -> str:
    return ",".join(str(value) for value in values)


def _bits(priorities: frozenset[int]) -> str:
    return _list(1 if priority in priorities else 0 for priority in range(8))


def _ethernet(out: Commented, adapter: Adapter) -> None:
    dev, device = adapter.netdev, adapter.device
    if adapter.driver.global_pause is not None:
        state = "on" if adapter.driver.global_pause else "off"
        out.add(f"ethtool -A {dev} rx {state} tx {state} || [ $? -eq {PAUSE_AS_IS} ]", "nic_pause")
    if adapter.qos.trust is not None:
        out.add(f"mlnx_qos -i {dev} --trust {adapter.qos.trust}", "nic_trust")
    for dscp, priority in sorted(adapter.qos.dscp_to_priority.items()):
        out.add(f"mlnx_qos -i {dev} --dscp2prio set,{dscp},{priority}", "nic_map")
    if adapter.link.cable_m is not None:
        out.add(f"mlnx_qos -i {dev} --cable_len {adapter.link.cable_m}", "nic_cable")
    if adapter.qos.pfc is not None:
        out.add(f"mlnx_qos -i {dev} --pfc {_bits(adapter.qos.pfc)}", "nic_pfc" if adapter.qos.pfc else "lossy")
    if adapter.qos.priority_to_buffer:
        out.add(f"mlnx_qos -i {dev} --prio2buffer {_list(adapter.qos.priority_to_buffer)}", "nic_buffer")
    if adapter.qos.buffer_bytes:
        out.add(f"mlnx_qos -i {dev} --buffer_size {_list(adapter.qos.buffer_bytes)}", "nic_buffer")
    if adapter.qos.scheduler:
        line = (
            f"mlnx_qos -i {dev} --prio_tc {_list(adapter.qos.priority_to_tc)} --tsa {_list(adapter.qos.scheduler)}"
        )
        out.add(f"{line} --tcbw {_list(adapter.qos.weights)}", "nic_ets")
    if adapter.roce.roce_mode is not None:
        out.add(f"cma_roce_mode -d {device} -p 1 -m {adapter.roce.roce_mode}", "roce_mode")
    if adapter.roce.tos is not None:
        out.add(f"cma_roce_tos -d {device} -p 1 -t {adapter.roce.tos}", "tos")
    if adapter.roce.traffic_class is not None:
        path = f"/sys/class/infiniband/{device}/tc/1/traffic_class"
        out.add(f"echo {adapter.roce.traffic_class} > {path}", "traffic_class")
    if adapter.roce.cnp_dscp is not None:
        out.add(f"echo {adapter.roce.cnp_dscp} > /sys/class/net/{dev}/ecn/roce_np/cnp_dscp", "cnp")
    if adapter.roce.cnp_priority is not None:
        out.add(f"echo {adapter.roce.cnp_priority} > /sys/class/net/{dev}/ecn/roce_np/cnp_802p_prio", "cnp")
    for side, priorities in (("np", adapter.roce.ecn_notification), ("rp", adapter.roce.ecn_reaction)):
        for priority in range(8) if priorities is not None else ():
            on = int(priority in (priorities or ()))
            out.add(f"echo {on} > /sys/class/net/{dev}/ecn/roce_{side}/enable/{priority}", "ecn_host")
    if adapter.driver.ring_rx is not None:
        line = f"ethtool -G {dev} rx {adapter.driver.ring_rx} tx {adapter.driver.ring_tx}"
        out.add(f"{line} || [ $? -eq {RING_AS_IS} ]", "ring")


def _pcie(out: Commented, adapter: Adapter) -> None:
    address = f"$(basename $(readlink /sys/class/infiniband/{adapter.device}/device))"
    if adapter.card.max_read_request is not None:
        code = (adapter.card.max_read_request // 128).bit_length() - 1
        out.add(f"setpci -s {address} CAP_EXP+8.w={code << 12:x}:7000", "read_request")
    for name, value in adapter.card.firmware.items():
        out.add(f"mlxconfig -y -d {adapter.device} set {name}={value}", _FIRMWARE.get(name, "mlxconfig_reads"))


def netplan(host: Host) -> str:
    """Return netplan's YAML: addresses, MTU, a table of routes for each rail."""
    out = Commented()
    out.plain("network:", "  version: 2", "  renderer: networkd", "  ethernets:")
    if host.management:
        out.plain("    eth0:")
        out.add(f"      addresses: [{host.management}]", "netplan")
    for number, adapter in enumerate(host.adapters.values()):
        out.plain(f"    {adapter.netdev}:")
        if adapter.link.address:
            out.add(f"      addresses: [{adapter.link.address}]", "netplan")
        if adapter.link.mtu_bytes is not None:
            out.add(f"      mtu: {adapter.link.mtu_bytes}", "ipoib_mtu" if adapter.link.ipoib_mode else "mtu")
        if adapter.link.ipoib_mode is not None:
            out.add(f"      infiniband-mode: {adapter.link.ipoib_mode}", "ipoib_mode")
        if _routed(adapter):
            _routes(out, adapter, FIRST_TABLE + number)
    return out.text


def _routed(adapter: Adapter) -> bool:
    return adapter.link.technology == "ethernet" and adapter.link.address.endswith("/31")


def _pair(adapter: Adapter) -> tuple[str, str]:
    """Return an adapter's address and its gateway (RFC 3021: the other of two addresses)."""
    own = adapter.link.address.partition("/")[0]
    head, _, last = own.rpartition(".")
    return own, f"{head}.{int(last) ^ 1}"


def _routes(out: Commented, adapter: Adapter, table: int) -> None:
    """Return traffic of an address by its own rail."""
    own, gateway = _pair(adapter)
    out.plain("      routes:")
    out.add(f"        - {{to: {RAILS}, via: {gateway}, table: {table}}}", "source_route")
    out.add(f"        - {{to: {RAILS}, via: {gateway}, metric: {table}}}", "source_route")
    out.plain("      routing-policy:")
    out.add(f"        - {{from: {own}, table: {table}}}", "source_route")


def nmcli(host: Host) -> str:
    """Return the same for NetworkManager."""
    out = _script(host)
    for number, adapter in enumerate(host.adapters.values()):
        kind = "infiniband" if adapter.link.technology == "infiniband" else "ethernet"
        base = f"nmcli connection modify rail-{adapter.netdev}"
        out.add(
            f"nmcli connection add type {kind} con-name rail-{adapter.netdev} ifname {adapter.netdev}", "netplan"
        )
        if adapter.link.address:
            out.add(f"{base} ipv4.method manual ipv4.addresses {adapter.link.address}", "netplan")
        if _routed(adapter):
            own, gateway = _pair(adapter)
            table = FIRST_TABLE + number
            routes = f"{RAILS} {gateway} {table}, {RAILS} {gateway} table={table}"
            rule = f"priority {table} from {own} table {table}"
            out.add(f'{base} ipv4.routes "{routes}" ipv4.routing-rules "{rule}"', "source_route")
        if adapter.link.mtu_bytes is not None:
            out.add(
                f"{base} {kind}.mtu {adapter.link.mtu_bytes}", "ipoib_mtu" if adapter.link.ipoib_mode else "mtu"
            )
        if adapter.link.ipoib_mode is not None:
            out.add(f"{base} infiniband.transport-mode {adapter.link.ipoib_mode}", "ipoib_mode")
        out.add(f"nmcli connection up rail-{adapter.netdev}", "netplan")
    out.add("exit $failed", "keep_going")
    return out.text


def _lines(each: Iterable[tuple[str, str]]) -> str:
    """Return a file of lines, each with the name of its reason, which stands above it."""
    out = Commented(beside=False)
    for line, key in each:
        out.add(line, key)
    return out.text


def sysctl(host: Host) -> str:
    """Return a file for /etc/sysctl.d, where a comment has a line of its own."""
    return _lines(
        (f"{name} = {value}", _SYSCTL.get(name, "socket_buffer")) for name, value in host.kernel.sysctl.items()
    )


def limits(host: Host) -> str:
    """Return a file for /etc/security/limits.d."""
    return _lines(
        (f"{what} {value}", "memlock" if "memlock" in what else "nofile")
        for what, value in host.kernel.limits.items()
    )


def modules(host: Host) -> str:
    """Return a file for /etc/modules-load.d."""
    return _lines((name, _MODULE.get(name, "module_rdma")) for name in host.kernel.modules)


def udev(host: Host) -> str:
    """Return rules that name interfaces by their adapter; a device's own number comes from its PCI slot."""
    out = Commented(beside=False)
    for adapter in host.adapters.values():
        if adapter.card.pci:
            rule = f'ACTION=="add", SUBSYSTEM=="net", KERNELS=="{adapter.card.pci}", NAME="{adapter.netdev}"'
        else:
            rule = (
                f'ACTION=="add", SUBSYSTEM=="net", PROGRAM="/bin/sh -c \'ls /sys%p/../../infiniband\'", '
                f'RESULT=="{adapter.device}", NAME="{adapter.netdev}"'
            )
        out.add(rule, "udev")
    return out.text


def service() -> str:
    """Return the unit that runs the script at boot."""
    out = Commented(beside=False)
    out.plain("[Unit]")
    out.add("Description=Adapters of the fabric", "service_adapters")
    out.add("After=openibd.service network-pre.target", "service_adapters")
    out.plain("[Service]")
    out.add("Type=oneshot", "service_adapters")
    out.add(f"ExecStart=/usr/local/sbin/{SCRIPT}", "service_adapters")
    out.plain("[Install]")
    out.add("WantedBy=multi-user.target", "service_adapters")
    return out.text


def grub(host: Host) -> str:
    """Return a file for /etc/default/grub.d."""
    out = Commented()
    listed = " ".join(host.kernel.kernel_arguments)
    out.add(f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {listed}"', "iommu")
    return out.text


def container(host: Host) -> str:
    """Return arguments of `docker run`, one a line; `grep -v '^#'` leaves them."""
    return _lines(
        (argument, _CONTAINER.get(argument.replace("=", " ").split()[0], "container_devices"))
        for argument in host.container
    )


def nccl(host: Host) -> str:
    """Return /etc/nccl.conf; NCCL takes a line that begins with # for a comment."""
    return _lines((f"{name}={value}", _NCCL.get(name, "nccl_hca")) for name, value in host.nccl.items())
