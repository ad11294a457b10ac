"""Queue pairs, shared receive queues, work requests. Values of `infiniband/verbs.h`, rdma-core's ABI."""

from __future__ import annotations

from enum import IntEnum

ibv_qp_type = IntEnum("ibv_qp_type", {
    "IBV_QPT_RC": 2, "IBV_QPT_UC": 3, "IBV_QPT_UD": 4, "IBV_QPT_RAW_PACKET": 8, "IBV_QPT_XRC_SEND": 9,
    "IBV_QPT_XRC_RECV": 10, "IBV_QPT_DRIVER": 0xFF,
})  # fmt: skip
ibv_qp_state = IntEnum("ibv_qp_state", """
    IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_SQD IBV_QPS_SQE IBV_QPS_ERR IBV_QPS_UNKNOWN
""", start=0)  # fmt: skip
ibv_qp_attr_mask = IntEnum("ibv_qp_attr_mask", {
    "IBV_QP_STATE": 1, "IBV_QP_CUR_STATE": 2, "IBV_QP_EN_SQD_ASYNC_NOTIFY": 4, "IBV_QP_ACCESS_FLAGS": 8,
    "IBV_QP_PKEY_INDEX": 16, "IBV_QP_PORT": 32, "IBV_QP_QKEY": 64, "IBV_QP_AV": 0x80, "IBV_QP_PATH_MTU": 0x100,
    "IBV_QP_TIMEOUT": 0x200, "IBV_QP_RETRY_CNT": 0x400, "IBV_QP_RNR_RETRY": 0x800, "IBV_QP_RQ_PSN": 0x1000,
    "IBV_QP_MAX_QP_RD_ATOMIC": 0x2000, "IBV_QP_ALT_PATH": 0x4000, "IBV_QP_MIN_RNR_TIMER": 0x8000,
    "IBV_QP_SQ_PSN": 0x10000, "IBV_QP_MAX_DEST_RD_ATOMIC": 0x20000, "IBV_QP_PATH_MIG_STATE": 0x40000,
    "IBV_QP_CAP": 0x80000, "IBV_QP_DEST_QPN": 0x100000, "IBV_QP_RATE_LIMIT": 0x2000000,
})  # fmt: skip
ibv_qp_init_attr_mask = IntEnum("ibv_qp_init_attr_mask", {
    "IBV_QP_INIT_ATTR_PD": 1, "IBV_QP_INIT_ATTR_XRCD": 2, "IBV_QP_INIT_ATTR_CREATE_FLAGS": 4,
    "IBV_QP_INIT_ATTR_MAX_TSO_HEADER": 8, "IBV_QP_INIT_ATTR_IND_TABLE": 16, "IBV_QP_INIT_ATTR_RX_HASH": 32,
    "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS": 64,
})  # fmt: skip
ibv_qp_create_flags = IntEnum("ibv_qp_create_flags", {
    "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB": 2, "IBV_QP_CREATE_SCATTER_FCS": 0x100,
    "IBV_QP_CREATE_CVLAN_STRIPPING": 0x200, "IBV_QP_CREATE_SOURCE_QPN": 0x400,
    "IBV_QP_CREATE_PCI_WRITE_END_PADDING": 0x800,
})  # fmt: skip
ibv_qp_create_send_ops_flags = IntEnum("ibv_qp_create_send_ops_flags", {
    "IBV_QP_EX_WITH_RDMA_WRITE": 1, "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM": 2, "IBV_QP_EX_WITH_SEND": 4,
    "IBV_QP_EX_WITH_SEND_WITH_IMM": 8, "IBV_QP_EX_WITH_RDMA_READ": 16, "IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP": 32,
    "IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD": 64, "IBV_QP_EX_WITH_LOCAL_INV": 0x80, "IBV_QP_EX_WITH_BIND_MW": 0x100,
    "IBV_QP_EX_WITH_SEND_WITH_INV": 0x200, "IBV_QP_EX_WITH_TSO": 0x400, "IBV_QP_EX_WITH_FLUSH": 0x800,
    "IBV_QP_EX_WITH_ATOMIC_WRITE": 0x1000,
})  # fmt: skip
ibv_query_qp_data_in_order_caps = IntEnum("ibv_query_qp_data_in_order_caps", """
    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES
""")  # fmt: skip
ibv_wr_opcode = IntEnum("ibv_wr_opcode", {
    "IBV_WR_RDMA_WRITE": 0, "IBV_WR_RDMA_WRITE_WITH_IMM": 1, "IBV_WR_SEND": 2, "IBV_WR_SEND_WITH_IMM": 3,
    "IBV_WR_RDMA_READ": 4, "IBV_WR_ATOMIC_CMP_AND_SWP": 5, "IBV_WR_ATOMIC_FETCH_AND_ADD": 6,
    "IBV_WR_LOCAL_INV": 7, "IBV_WR_BIND_MW": 8, "IBV_WR_SEND_WITH_INV": 9, "IBV_WR_TSO": 10, "IBV_WR_FLUSH": 14,
    "IBV_WR_ATOMIC_WRITE": 15,
})  # fmt: skip
ibv_send_flags = IntEnum("ibv_send_flags", {
    "IBV_SEND_FENCE": 1, "IBV_SEND_SIGNALED": 2, "IBV_SEND_SOLICITED": 4, "IBV_SEND_INLINE": 8,
    "IBV_SEND_IP_CSUM": 16,
})  # fmt: skip
ibv_srq_type = IntEnum("ibv_srq_type", "IBV_SRQT_BASIC IBV_SRQT_XRC IBV_SRQT_TM", start=0)
ibv_srq_attr_mask = IntEnum("ibv_srq_attr_mask", "IBV_SRQ_MAX_WR IBV_SRQ_LIMIT")
ibv_srq_init_attr_mask = IntEnum("ibv_srq_init_attr_mask", {
    "IBV_SRQ_INIT_ATTR_TYPE": 1, "IBV_SRQ_INIT_ATTR_PD": 2, "IBV_SRQ_INIT_ATTR_XRCD": 4,
    "IBV_SRQ_INIT_ATTR_CQ": 8, "IBV_SRQ_INIT_ATTR_TM": 16,
})  # fmt: skip
