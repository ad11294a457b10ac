"""Completion queues and work completions. Values of `infiniband/verbs.h`, rdma-core's ABI."""

from __future__ import annotations

from enum import IntEnum

ibv_wc_status = IntEnum("ibv_wc_status", """
    IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_EEC_OP_ERR IBV_WC_LOC_PROT_ERR
    IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR IBV_WC_BAD_RESP_ERR IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_INV_REQ_ERR
    IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_LOC_RDD_VIOL_ERR
    IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR IBV_WC_INV_EECN_ERR IBV_WC_INV_EEC_STATE_ERR IBV_WC_FATAL_ERR
    IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR IBV_WC_TM_ERR IBV_WC_TM_RNDV_INCOMPLETE
""", start=0)  # fmt: skip
ibv_wc_opcode = IntEnum("ibv_wc_opcode", {
    "IBV_WC_SEND": 0, "IBV_WC_RDMA_WRITE": 1, "IBV_WC_RDMA_READ": 2, "IBV_WC_COMP_SWAP": 3,
    "IBV_WC_FETCH_ADD": 4, "IBV_WC_BIND_MW": 5, "IBV_WC_LOCAL_INV": 6, "IBV_WC_TSO": 7, "IBV_WC_FLUSH": 8,
    "IBV_WC_ATOMIC_WRITE": 9, "IBV_WC_RECV": 0x80, "IBV_WC_RECV_RDMA_WITH_IMM": 0x81, "IBV_WC_TM_ADD": 0x82,
    "IBV_WC_TM_DEL": 0x83, "IBV_WC_TM_SYNC": 0x84, "IBV_WC_TM_RECV": 0x85, "IBV_WC_TM_NO_TAG": 0x86,
    "IBV_WC_DRIVER2": 0x88, "IBV_WC_DRIVER3": 0x89,
})  # fmt: skip
ibv_wc_flags = IntEnum("ibv_wc_flags", {
    "IBV_WC_GRH": 1, "IBV_WC_WITH_IMM": 2, "IBV_WC_IP_CSUM_OK": 4, "IBV_WC_WITH_INV": 8,
    "IBV_WC_TM_SYNC_REQ": 16, "IBV_WC_TM_MATCH": 32, "IBV_WC_TM_DATA_VALID": 64,
})  # fmt: skip
ibv_cq_init_attr_mask = IntEnum("ibv_cq_init_attr_mask", "IBV_CQ_INIT_ATTR_MASK_FLAGS IBV_CQ_INIT_ATTR_MASK_PD")
ibv_create_cq_attr_flags = IntEnum("ibv_create_cq_attr_flags", """
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN
""")  # fmt: skip
