"""Enumerations that programs import and the twin reads nothing of.

Values of `infiniband/verbs.h`, rdma-core's ABI.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

_COUNTED = """
ibv_counter_description: IBV_COUNTER_PACKETS IBV_COUNTER_BYTES
ibv_tph_mem_type: IBV_TPH_MEM_TYPE_VM IBV_TPH_MEM_TYPE_PM
ibv_mig_state: IBV_MIG_MIGRATED IBV_MIG_REARM IBV_MIG_ARMED
ibv_wq_type: IBV_WQT_RQ
ibv_wq_state: IBV_WQS_RESET IBV_WQS_RDY IBV_WQS_ERR IBV_WQS_UNKNOWN
ibv_ops_wr_opcode: IBV_WR_TAG_ADD IBV_WR_TAG_DEL IBV_WR_TAG_SYNC
ibv_tmh_op: IBV_TMH_NO_TAG IBV_TMH_RNDV IBV_TMH_FIN IBV_TMH_EAGER
ibv_flow_attr_type: IBV_FLOW_ATTR_NORMAL IBV_FLOW_ATTR_ALL_DEFAULT IBV_FLOW_ATTR_MC_DEFAULT
    IBV_FLOW_ATTR_SNIFFER
"""
_FLAGS = """
ibv_raw_packet_caps: IBV_RAW_PACKET_CAP_CVLAN_STRIPPING IBV_RAW_PACKET_CAP_SCATTER_FCS
    IBV_RAW_PACKET_CAP_IP_CSUM IBV_RAW_PACKET_CAP_DELAY_DROP
ibv_odp_general_caps: IBV_ODP_SUPPORT IBV_ODP_SUPPORT_IMPLICIT
ibv_odp_transport_cap_bits: IBV_ODP_SUPPORT_SEND IBV_ODP_SUPPORT_RECV IBV_ODP_SUPPORT_WRITE IBV_ODP_SUPPORT_READ
    IBV_ODP_SUPPORT_ATOMIC IBV_ODP_SUPPORT_SRQ_RECV IBV_ODP_SUPPORT_FLUSH IBV_ODP_SUPPORT_ATOMIC_WRITE
ibv_values_mask: IBV_VALUES_MASK_RAW_CLOCK
ibv_read_counters_flags: IBV_READ_COUNTERS_ATTR_PREFER_CACHED
ibv_mr_init_attr_mask: IBV_REG_MR_MASK_IOVA IBV_REG_MR_MASK_ADDR IBV_REG_MR_MASK_FD IBV_REG_MR_MASK_FD_OFFSET
    IBV_REG_MR_MASK_DMAH IBV_REG_MR_MASK_BUF
ibv_dmah_init_attr_mask: IBV_DMAH_INIT_ATTR_MASK_CPU_ID IBV_DMAH_INIT_ATTR_MASK_PH
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
ibv_parent_domain_init_attr_mask: IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC
ibv_xrcd_init_attr_mask: IBV_XRCD_INIT_ATTR_FD IBV_XRCD_INIT_ATTR_OFLAGS IBV_XRCD_INIT_ATTR_RESERVED
ibv_create_cq_wc_flags: IBV_WC_EX_WITH_BYTE_LEN IBV_WC_EX_WITH_IMM IBV_WC_EX_WITH_QP_NUM IBV_WC_EX_WITH_SRC_QP
    IBV_WC_EX_WITH_SLID IBV_WC_EX_WITH_SL IBV_WC_EX_WITH_DLID_PATH_BITS IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    IBV_WC_EX_WITH_CVLAN IBV_WC_EX_WITH_FLOW_TAG IBV_WC_EX_WITH_TM_INFO
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
ibv_query_qp_data_in_order_flags: IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS
ibv_wq_init_attr_mask: IBV_WQ_INIT_ATTR_FLAGS
ibv_wq_flags: IBV_WQ_FLAGS_CVLAN_STRIPPING IBV_WQ_FLAGS_SCATTER_FCS IBV_WQ_FLAGS_DELAY_DROP
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING
ibv_wq_attr_mask: IBV_WQ_ATTR_STATE IBV_WQ_ATTR_CURR_STATE IBV_WQ_ATTR_FLAGS
ibv_ops_flags: IBV_OPS_SIGNALED IBV_OPS_TM_SYNC
ibv_tm_cap_flags: IBV_TM_CAP_RC
ibv_rx_hash_function_flags: IBV_RX_HASH_FUNC_TOEPLITZ
ibv_rx_hash_fields: IBV_RX_HASH_SRC_IPV4 IBV_RX_HASH_DST_IPV4 IBV_RX_HASH_SRC_IPV6 IBV_RX_HASH_DST_IPV6
    IBV_RX_HASH_SRC_PORT_TCP IBV_RX_HASH_DST_PORT_TCP IBV_RX_HASH_SRC_PORT_UDP IBV_RX_HASH_DST_PORT_UDP
"""
_VALUED = """
ibv_flow_flags: IBV_FLOW_ATTR_FLAGS_DONT_TRAP=0x2 IBV_FLOW_ATTR_FLAGS_EGRESS=0x4
ibv_flow_spec_type: IBV_FLOW_SPEC_ETH=0x20 IBV_FLOW_SPEC_IPV4=0x30 IBV_FLOW_SPEC_IPV6=0x31
    IBV_FLOW_SPEC_IPV4_EXT=0x32 IBV_FLOW_SPEC_ESP=0x34 IBV_FLOW_SPEC_TCP=0x40 IBV_FLOW_SPEC_UDP=0x41
    IBV_FLOW_SPEC_VXLAN_TUNNEL=0x50 IBV_FLOW_SPEC_GRE=0x51 IBV_FLOW_SPEC_MPLS=0x60 IBV_FLOW_SPEC_INNER=0x100
    IBV_FLOW_SPEC_ACTION_TAG=0x1000 IBV_FLOW_SPEC_ACTION_DROP=0x1001 IBV_FLOW_SPEC_ACTION_HANDLE=0x1002
    IBV_FLOW_SPEC_ACTION_COUNT=0x1003
"""


def _enumerations(table: str, value: Callable[[int], int]) -> dict[str, type[IntEnum]]:
    """Return the enumerations of a table; `value` is that of the member at a position, where it names none."""
    members: dict[str, dict[str, int]] = {}
    for word in table.split():
        if word.endswith(":"):
            of = members.setdefault(word[:-1], {})
        else:
            name, _, given = word.partition("=")
            of[name] = int(given, 0) if given else value(len(of))
    return {name: IntEnum(name, of, module=__name__) for name, of in members.items()}  # type: ignore[misc]


ENUMERATIONS = (
    _enumerations(_COUNTED, lambda position: position)
    | _enumerations(_FLAGS, lambda position: 1 << position)
    | _enumerations(_VALUED, lambda position: position)
)
