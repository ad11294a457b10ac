"""The files that programs on a host see: `/sys/class/infiniband` and what lies beside it.

Laid out as the kernel's (Documentation/ABI/stable/sysfs-class-infiniband): classes link into a PCI device's
folder. A device's `modalias` names the rxe driver: libibverbs chooses its provider by it (libibverbs/init.c).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fabrictwin.live import wire
from fabrictwin.live.netlink import route_abi
from fabrictwin.subnet.wire.link_encodings import link_of
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.gid import ROCE_V2
from fabrictwin.verbs.attributes import device_limits
from fabrictwin.verbs.attributes.device_attributes import guid_format

_STATES = {1: "1: DOWN", 2: "2: INIT", 3: "3: ARMED", 4: "4: ACTIVE"}
_PHYSICAL = {3: "3: Disabled", 5: "5: LinkUp"}
_LINK_LAYERS = {1: "InfiniBand", 2: "Ethernet"}
_VENDOR = "0x15b3"  # Mellanox Technologies, as in the PCI ID repository
_MTU_ETHERNET, _MTU_INFINIBAND = 4200, 4092
_ARPHRD_ETHER, _ARPHRD_INFINIBAND = 1, 32  # linux/if_arp.h
IPV4_PREFIX = 8  # adapters' addresses are in 10.0.0.0/8
FIRST_IFINDEX = 1 << 20  # far above what a machine's own interfaces get
# what a lane is called by, in Gb/s, and its name
_LANE_GBPS = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0,
    "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip


def netdev(adapter: Adapter, number: int) -> str:
    """The network interface of a host's n-th adapter; `eth0` is a host's management network."""
    return f"eth{number + 1}" if adapter.ethernet else f"ib{number}"


def hardware_address(adapter: Adapter) -> bytes:
    """The link-layer address of an adapter's interface: a MAC, or flags, queue pair and GID (RFC 4391, 9.1.1)."""
    return adapter.mac if adapter.ethernet else bytes(4) + adapter.gids[0].raw


def mtu(adapter: Adapter) -> int:
    """The MTU of an adapter's interface, in bytes."""
    return _MTU_ETHERNET if adapter.ethernet else _MTU_INFINIBAND


def _rate(adapter: Adapter) -> str:
    if not adapter.active:
        return "2.5 Gb/sec (1X SDR)"
    lanes, speed = link_of(adapter.rate_bps)
    return f"{lanes * _LANE_GBPS[speed.name]:g} Gb/sec ({lanes}X {speed.name})"


def _put(folder: Path, values: dict[str, object]) -> None:
    made: set[str] = set()
    for name, value in values.items():
        path = f"{folder}/{name}"
        parent = os.path.dirname(path)
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.write(descriptor, f"{value}\n".encode())
        os.close(descriptor)


def _link(path: Path, to: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(to, path.parent))


def port_files(adapter: Adapter) -> dict[str, object]:
    """Files of a port that change with its link."""
    a = device_limits.port_attributes(adapter)
    return {
        "state": _STATES[a.state],
        "phys_state": _PHYSICAL[a.phys_state],
        "rate": _rate(adapter),
        "lid": f"{a.lid:#x}",
        "sm_lid": f"{a.sm_lid:#x}",
    }


def _gid(raw: bytes) -> str:
    return ":".join(raw[at : at + 2].hex() for at in range(0, 16, 2))


def _tables(adapter: Adapter, interface: str) -> dict[str, object]:
    files: dict[str, object] = {f"pkeys/{index}": f"{key:#06x}" for index, key in enumerate(adapter.pkeys)}
    for index in range(adapter.gid_table_length):
        known = adapter.gids[index] if index < len(adapter.gids) else None
        files[f"gids/{index}"] = _gid(bytes(16) if known is None else known.raw)
        if known is not None:
            files[f"gid_attrs/types/{index}"] = "RoCE v2" if known.kind == ROCE_V2 else "IB/RoCE v1"
            if adapter.ethernet:
                files[f"gid_attrs/ndevs/{index}"] = interface
    return files


def write_tree(root: Path, adapters: list[Adapter], between: bytes) -> None:
    """Write the files of a host's adapters into an empty folder; `between` is the first and last IPv4 address."""
    sys = root / "sys"
    _put(sys / "class/infiniband_verbs", {"abi_version": wire.VERBS_ABI})
    _put(sys / "class/misc/rdma_cm", {"abi_version": wire.CM_ABI, "dev": "10:120"})
    (sys / "class/infiniband").mkdir()
    (sys / "class/infiniband_mad").mkdir()
    _put(sys / "class/infiniband_mad", {"abi_version": 5})
    devices = root / "dev/infiniband"
    devices.mkdir(parents=True)
    for name in ("rdma_cm", *(f"uverbs{number}" for number in range(len(adapters)))):
        (devices / name).touch()
    for number, adapter in enumerate(adapters):
        _write_device(sys, adapter, number)
    (root / "netlink").mkdir()
    (root / "netlink/hosts").write_bytes(between)
    _write_interfaces(root, adapters)


def _write_interfaces(root: Path, adapters: list[Adapter]) -> None:
    """Write what route netlink says of the adapters' interfaces, whole: programs may read it now."""
    links = addresses = b""
    for number, adapter in enumerate(adapters):
        name, index = netdev(adapter, number), FIRST_IFINDEX + number
        kind = _ARPHRD_ETHER if adapter.ethernet else _ARPHRD_INFINIBAND
        links += route_abi.link(index, name, kind, hardware_address(adapter), mtu(adapter), active=adapter.active)
        addresses += route_abi.address(index, name, adapter.ipv4, IPV4_PREFIX)
    folder = root / "netlink"
    for file, data in (("links", links), ("addresses", addresses)):
        fresh = folder / f".{file}"
        fresh.write_bytes(data)
        fresh.replace(folder / file)


def _write_device(sys: Path, adapter: Adapter, number: int) -> None:
    interface = netdev(adapter, number)
    part = device_limits.part_id(adapter)
    address = f"0000:{0x18 + number:02x}:00.0"
    pci = sys / "devices/pci0000:00" / address
    guid = guid_format(int.from_bytes(adapter.guid.to_bytes(8, "big"), "little"))
    layer = device_limits.port_attributes(adapter).link_layer
    _put(
        pci,
        {
            "vendor": _VENDOR,
            "device": f"{part - 4096 + 0x1000:#x}",
            "class": "0x020000" if adapter.ethernet else "0x020700",
            "numa_node": 0,
            "modalias": "rdma_device:Nrxe",
            "revision": "0x00",
            "subsystem_vendor": _VENDOR,
            "subsystem_device": "0x0000",
        },
    )
    device, verbs = pci / "infiniband" / adapter.name, pci / "infiniband_verbs" / f"uverbs{number}"
    net = pci / "net" / interface
    _put(
        device,
        {
            "node_type": "1: CA",
            "node_guid": guid,
            "sys_image_guid": guid,
            "fw_ver": device_limits.firmware(),
            "hw_rev": 0,
            "hca_type": f"MT{part}",
            "node_desc": f"{adapter.host_name} {adapter.name}",
        },
    )
    a = device_limits.port_attributes(adapter)
    port: dict[str, object] = {
        **port_files(adapter),
        "link_layer": _LINK_LAYERS[layer],
        "cap_mask": f"{a.port_cap_flags:#010x}",
        "lid_mask_count": a.lmc,
        "sm_sl": a.sm_sl,
        **_tables(adapter, interface),
    }
    _put(device / "ports/1", port)
    _put(verbs, {"ibdev": adapter.name, "dev": f"231:{192 + number}", "abi_version": wire.RXE_ABI})
    _put(
        net,
        {
            "address": hardware_address(adapter).hex(":"),
            "mtu": mtu(adapter),
            "type": _ARPHRD_ETHER if adapter.ethernet else _ARPHRD_INFINIBAND,
            "dev_id": "0x0",
            "dev_port": 0,
            "operstate": "up" if adapter.active else "down",
            "carrier": int(adapter.active),
            "ifindex": FIRST_IFINDEX + number,
        },
    )
    for holder in (device, verbs, net):
        _link(holder / "device", pci)
    _link(sys / "class/infiniband" / adapter.name, device)
    _link(sys / "class/infiniband_verbs" / verbs.name, verbs)
    _link(sys / "class/net" / interface, net)
    _link(sys / "bus/pci/devices" / address, pci)


def update_ports(root: Path, adapters: list[Adapter]) -> None:
    """Write anew what links have changed."""
    for number, adapter in enumerate(adapters):
        _put(root / "sys/class/infiniband" / adapter.name / "ports/1", port_files(adapter))
        state = {"operstate": "up" if adapter.active else "down", "carrier": int(adapter.active)}
        _put(root / "sys/class/net" / netdev(adapter, number), dict(state))
    _write_interfaces(root, adapters)


def remove_tree(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
