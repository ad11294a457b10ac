"""Attributes of devices and ports, and their texts: the classes of `pyverbs.device`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from fabrictwin.verbs.abi.device_codes import (
    ibv_device_cap_flags,
    ibv_gid_type,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
)
from fabrictwin.verbs.attributes.code_words import lines
from fabrictwin.verbs.pyverbs.base import PyverbsObject
from fabrictwin.verbs.pyverbs.utils import be64toh

_STATES = {0: "NOP", 1: "Down", 2: "Init", 3: "Armed", 4: "Active", 5: "Defer"}
_LINK_LAYERS = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
_PHYSICAL = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "Port configuration training",
    5: "Link up",
    6: "Link error recovery",
    7: "Phy test",
}
_WIDTHS = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
_SPEEDS = {0: 0.0, 1: 2.5, 2: 5.0, 4: 5.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}


def guid_format(num: int) -> str:
    """A GUID as it lies in memory, as `xxxx:xxxx:xxxx:xxxx`."""
    text = f"{be64toh(num):016x}"
    return ":".join(text[at : at + 4] for at in range(0, 16, 4))


def guid_to_hex(node_guid: int) -> str:
    return f"{node_guid:x}"


def translate_gid_type(gid_type: int) -> str:
    names = {ibv_gid_type.IBV_GID_TYPE_IB: "IB", ibv_gid_type.IBV_GID_TYPE_ROCE_V1: "RoCEv1"}
    names[ibv_gid_type.IBV_GID_TYPE_ROCE_V2] = "RoCEv2"
    return {int(k): v for k, v in names.items()}.get(gid_type, f"Unknown gid_type ({gid_type})")


def translate_transport_type(transport_type: int) -> str:
    names = {0: "IB", 1: "IWARP", 2: "USNIC", 3: "USNIC UDP"}
    return names.get(transport_type, "Unknown")


def translate_node_type(node_type: int) -> str:
    names = {1: "CA", 2: "Switch", 3: "Router", 4: "RNIC", 5: "USNIC", 6: "USNIC UDP"}
    return names.get(node_type, "Unknown")


def port_state_to_str(port_state: int) -> str:
    if port_state not in _STATES:
        return f"Invalid state ({port_state})"
    return f"{_STATES[port_state]} ({port_state})"


def translate_mtu(mtu: int) -> str:
    return f"{128 << mtu} ({mtu})" if mtu in range(1, 6) else f"Invalid MTU ({mtu})"


def translate_link_layer(ll: int) -> str:
    return _LINK_LAYERS.get(ll, f"Invalid link layer ({ll})")


def str_from_flags(flags: int, dictionary: Mapping[int, str]) -> str:
    """The names of the flags that are set, each on a line of its own."""
    return "\n  " + "".join(f"{name}\n  " for bit, name in dictionary.items() if flags & bit)


def _names(of: type[IntEnum]) -> dict[int, str]:
    return {member.value: member.name for member in of}


def translate_port_cap_flags(flags: int) -> str:
    return str_from_flags(flags, _names(ibv_port_cap_flags))


def translate_port_cap_flags2(flags: int) -> str:
    return str_from_flags(flags, _names(ibv_port_cap_flags2))


def translate_device_caps(flags: int) -> str:
    return str_from_flags(flags, _names(ibv_device_cap_flags))


def phys_state_to_str(phys: int) -> str:
    return f"{_PHYSICAL[phys]} ({phys})" if phys in _PHYSICAL else "Invalid physical state"


def width_to_str(width: int) -> str:
    return f"{_WIDTHS[width]} ({width})" if width in _WIDTHS else "Invalid width"


def speed_to_str(active_speed: int, active_speed_ex: int = 0) -> str:
    """The speed of a lane; codes that outgrew the first field come in the second."""
    code = active_speed_ex or active_speed
    return f"{_SPEEDS[code]} Gbps ({code})" if code in _SPEEDS else "Invalid speed"


class DeviceAttr(PyverbsObject):
    """`ibv_device_attr`. GUIDs are as they lie in memory: big-endian."""

    fw_version = ""
    node_guid = 0
    sys_image_guid = 0
    max_mr_size = 0
    page_size_cap = 0
    vendor_id = 0
    vendor_part_id = 0
    hw_ver = 0
    max_qp = 0
    max_qp_wr = 0
    device_cap_flags = 0
    max_sge = 0
    max_sge_rd = 0
    max_cq = 0
    max_cqe = 0
    max_mr = 0
    max_pd = 0
    max_qp_rd_atom = 0
    max_ee_rd_atom = 0
    max_res_rd_atom = 0
    max_qp_init_rd_atom = 0
    max_ee_init_rd_atom = 0
    atomic_caps = 0
    max_ee = 0
    max_rdd = 0
    max_mw = 0
    max_raw_ipv6_qps = 0
    max_raw_ethy_qp = 0
    max_mcast_grp = 0
    max_mcast_qp_attach = 0
    max_ah = 0
    max_fmr = 0
    max_map_per_fmr = 0
    max_srq = 0
    max_srq_wr = 0
    max_srq_sge = 0
    max_pkeys = 0
    local_ca_ack_delay = 0
    phys_port_cnt = 0

    def __str__(self) -> str:
        guids = ("node_guid", "sys_image_guid")
        values = ((name, getattr(self, name)) for name in _fields(DeviceAttr))
        return lines(((name, guid_format(value) if name in guids else value) for name, value in values), 24)


def _fields(of: type) -> list[str]:
    return [name for name, value in vars(of).items() if not name.startswith("_") and not callable(value)]


@dataclass(eq=False, repr=False)
class QueryDeviceExInput(PyverbsObject):
    comp_mask: int


def _none_of(name: str, fields: str) -> type[PyverbsObject]:
    """Return the class of capabilities that the twin's adapters have none of: all zero."""
    return type(name, (PyverbsObject,), {**dict.fromkeys(fields.split(), 0), "__module__": __name__})


ODPCaps = _none_of("ODPCaps", "general_caps rc_odp_caps uc_odp_caps ud_odp_caps xrc_odp_caps")
PCIAtomicCaps = _none_of("PCIAtomicCaps", "fetch_add swap compare_swap")
TSOCaps = _none_of("TSOCaps", "max_tso supported_qpts")
RSSCaps = _none_of(
    "RSSCaps",
    "supported_qpts max_rwq_indirection_tables rx_hash_fields_mask rx_hash_function"
    " max_rwq_indirection_table_size",
)
PacketPacingCaps = _none_of("PacketPacingCaps", "qp_rate_limit_min qp_rate_limit_max supported_qpts")
TMCaps = _none_of("TMCaps", "max_rndv_hdr_size max_num_tags flags max_ops max_sge")
CQModerationCaps = _none_of("CQModerationCaps", "max_cq_count max_cq_period")


class DeviceAttrEx(PyverbsObject):
    """`ibv_device_attr_ex`: what came after `ibv_device_attr`."""

    def __init__(self, orig_attr: DeviceAttr) -> None:
        self.orig_attr = orig_attr
        self.comp_mask = 0
        self.odp_caps = ODPCaps()
        self.completion_timestamp_mask = 0
        self.hca_core_clock = 0  # kHz
        self.device_cap_flags_ex = 0
        self.tso_caps = TSOCaps()
        self.pci_atomic_caps = PCIAtomicCaps()
        self.rss_caps = RSSCaps()
        self.max_wq_type_rq = 0
        self.packet_pacing_caps = PacketPacingCaps()
        self.raw_packet_caps = 0
        self.tm_caps = TMCaps()
        self.cq_mod_caps = CQModerationCaps()
        self.max_dm_size = 0
        self.phys_port_cnt_ex = orig_attr.phys_port_cnt


class PortAttr(PyverbsObject):
    """`ibv_port_attr`."""

    state = 0
    max_mtu = 0
    active_mtu = 0
    gid_tbl_len = 0
    port_cap_flags = 0
    max_msg_sz = 0
    bad_pkey_cntr = 0
    qkey_viol_cntr = 0
    pkey_tbl_len = 0
    lid = 0
    sm_lid = 0
    lmc = 0
    max_vl_num = 0
    sm_sl = 0
    subnet_timeout = 0
    init_type_reply = 0
    active_width = 0
    active_speed = 0
    phys_state = 0
    link_layer = 0
    flags = 0
    port_cap_flags2 = 0
    active_speed_ex = 0

    def __str__(self) -> str:
        return lines(
            (
                ("Port state", port_state_to_str(self.state)),
                ("Max MTU", translate_mtu(self.max_mtu)),
                ("Active MTU", translate_mtu(self.active_mtu)),
                ("SM lid", self.sm_lid),
                ("Port lid", self.lid),
                ("lmc", hex(self.lmc)),
                ("Link layer", translate_link_layer(self.link_layer)),
                ("Max message size", hex(self.max_msg_sz)),
                ("Bad pkey counter", self.bad_pkey_cntr),
                ("Qkey violations counter", self.qkey_viol_cntr),
                ("Gid table len", self.gid_tbl_len),
                ("Pkey table len", self.pkey_tbl_len),
                ("Active width", width_to_str(self.active_width)),
                ("Active speed", speed_to_str(self.active_speed, self.active_speed_ex)),
                ("Phys state", phys_state_to_str(self.phys_state)),
            ),
            24,
        )
