"""Answers of the twin's adapters when they are queried: limits from the catalog, the rest from the fabric."""

from __future__ import annotations

from functools import cache

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.version import __version__
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.wire.link_encodings import WIDTH_CODES, Speed, link_of
from fabrictwin.verbs.abi.device_codes import (
    ibv_atomic_cap,
    ibv_device_cap_flags,
    ibv_port_cap_flags,
    ibv_port_state,
)
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.qp_checks import MTU_CODES
from fabrictwin.verbs.attributes.device_attributes import DeviceAttr, DeviceAttrEx, PortAttr
from fabrictwin.verbs.pyverbs.enums import IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND
from fabrictwin.verbs.pyverbs.utils import be64toh

_FAMILY = "mlx5"
_FALLBACK_PART = "connectx-7"  # of adapters whose type is not known: discovered ones, without a host

# ibv_port_attr.active_speed; XDR is the first that needs active_speed_ex
SPEED_CODES = {
    Speed.SDR: 1,
    Speed.DDR: 2,
    Speed.QDR: 4,
    Speed.FDR10: 8,
    Speed.FDR: 16,
    Speed.EDR: 32,
    Speed.HDR: 64,
    Speed.NDR: 128,
    Speed.XDR: 256,
}
_LINK_UP, _DISABLED = 5, 3
CLOCK_KHZ = 1_000_000  # time stamps count nanoseconds of simulated time
_SUBNET_TIMEOUT = 18  # OpenSM's default

_FLAGS = int(
    ibv_device_cap_flags.IBV_DEVICE_BAD_PKEY_CNTR
    | ibv_device_cap_flags.IBV_DEVICE_BAD_QKEY_CNTR
    | ibv_device_cap_flags.IBV_DEVICE_CURR_QP_STATE_MOD
    | ibv_device_cap_flags.IBV_DEVICE_SYS_IMAGE_GUID
    | ibv_device_cap_flags.IBV_DEVICE_RC_RNR_NAK_GEN
    | ibv_device_cap_flags.IBV_DEVICE_SRQ_RESIZE
    | ibv_device_cap_flags.IBV_DEVICE_MEM_WINDOW
    | ibv_device_cap_flags.IBV_DEVICE_XRC
    | ibv_device_cap_flags.IBV_DEVICE_MEM_WINDOW_TYPE_2B
)


@cache
def limits() -> catalog.VerbsDevice:
    """Limits of the adapters' family."""
    return catalog.verbs_device(_FAMILY)


PAGE_BYTES = 4096


@cache
def _reads(adapter_type: str) -> int:
    """Reads and atomics that a queue pair may have outstanding."""
    try:
        return catalog.nic(adapter_type or _FALLBACK_PART).max_outstanding_reads.value
    except ConfigError:
        return catalog.nic(_FALLBACK_PART).max_outstanding_reads.value


def firmware() -> str:
    """The twin's version, in the form of a firmware's."""
    return __version__


def part_id(adapter: Adapter) -> int:
    parts = limits().part_ids
    return parts.get(adapter.type_name, parts[_FALLBACK_PART]).value


def device_attributes(adapter: Adapter) -> DeviceAttr:
    """`ibv_query_device`."""
    a, known = DeviceAttr(), limits()
    a.fw_version = firmware()
    a.node_guid = a.sys_image_guid = be64toh(adapter.guid)
    a.max_mr_size = (1 << 64) - 1
    a.page_size_cap = (1 << 64) - PAGE_BYTES
    a.vendor_id = known.vendor_id.value
    a.vendor_part_id = part_id(adapter)
    a.max_qp = known.max_qp.value
    a.max_qp_wr = known.max_qp_wr.value
    a.device_cap_flags = _FLAGS
    a.max_sge = a.max_sge_rd = known.max_sge.value
    a.max_cq = known.max_cq.value
    a.max_cqe = known.max_cqe.value
    a.max_mr = known.max_mr.value
    a.max_pd = known.max_pd.value
    a.max_qp_rd_atom = a.max_qp_init_rd_atom = _reads(adapter.type_name)
    a.max_res_rd_atom = known.max_res_rd_atom.value
    a.atomic_caps = int(ibv_atomic_cap.IBV_ATOMIC_HCA)
    a.max_mw = known.max_mw.value
    a.max_ah = known.max_ah.value
    a.max_srq = known.max_srq.value
    a.max_srq_wr = known.max_srq_wr.value
    a.max_srq_sge = known.max_srq_sge.value
    a.max_pkeys = known.max_pkeys.value
    a.local_ca_ack_delay = known.local_ca_ack_delay.value
    a.phys_port_cnt = 1
    return a


def extended_attributes(adapter: Adapter) -> DeviceAttrEx:
    """`ibv_query_device_ex`."""
    a = DeviceAttrEx(device_attributes(adapter))
    a.completion_timestamp_mask = (1 << 64) - 1
    a.hca_core_clock = CLOCK_KHZ
    a.device_cap_flags_ex = _FLAGS
    return a


def port_attributes(adapter: Adapter) -> PortAttr:
    """`ibv_query_port`."""
    a = PortAttr()
    up = adapter.active
    a.state = int(ibv_port_state.IBV_PORT_ACTIVE if up else ibv_port_state.IBV_PORT_DOWN)
    a.phys_state = _LINK_UP if up else _DISABLED
    a.max_mtu = MTU_CODES[4096]
    a.active_mtu = MTU_CODES[adapter.mtu_bytes]
    a.gid_tbl_len = adapter.gid_table_length
    a.port_cap_flags = int(ibv_port_cap_flags.IBV_PORT_CM_SUP | ibv_port_cap_flags.IBV_PORT_EXTENDED_SPEEDS_SUP)
    a.max_msg_sz = limits().max_message.value
    a.bad_pkey_cntr = adapter.pkey_violations
    a.qkey_viol_cntr = adapter.qkey_violations
    a.pkey_tbl_len = len(adapter.pkeys)
    a.lid = adapter.lid
    a.active_width, speed = link_codes(adapter)
    a.active_speed, a.active_speed_ex = (128, speed) if speed > 128 else (speed, 0)
    if adapter.ethernet:
        a.link_layer = IBV_LINK_LAYER_ETHERNET
        a.port_cap_flags |= int(ibv_port_cap_flags.IBV_PORT_IP_BASED_GIDS)
        a.flags = 1  # IBV_QPF_GRH_REQUIRED
    else:
        a.link_layer = IBV_LINK_LAYER_INFINIBAND
        a.sm_lid = manager_lid(adapter)
        a.lmc = adapter.world.routes.lmc
        a.max_vl_num = 4  # 8 lanes
        a.subnet_timeout = _SUBNET_TIMEOUT
    return a


def link_codes(adapter: Adapter) -> tuple[int, int]:
    """(active_width, active_speed) of the port; of the slowest link where it is down."""
    if not adapter.active:
        return 2, 1
    lanes, speed = link_of(adapter.rate_bps)
    return WIDTH_CODES[lanes], SPEED_CODES[speed]


def manager_lid(adapter: Adapter) -> int:
    """The LID of the subnet's manager: the first adapter of the plane, where `fabrictwin sm` runs it."""
    fabric = adapter.world.fabric
    if adapter.ethernet:
        return 0
    for node, port in zip(fabric.nic_node.tolist(), fabric.nic_port.tolist(), strict=True):
        lid = int(adapter.world.routes.lid[node])
        cabled = port != NONE and fabric.port_peer[port] != NONE
        if lid and cabled and fabric.node_plane[node] == adapter.plane:
            return lid
    return 0
