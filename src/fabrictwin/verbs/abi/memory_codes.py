"""Memory regions, windows and protection domains. Values of `infiniband/verbs.h`, rdma-core's ABI."""

from __future__ import annotations

from enum import IntEnum

ibv_access_flags = IntEnum("ibv_access_flags", {
    "IBV_ACCESS_LOCAL_WRITE": 1, "IBV_ACCESS_REMOTE_WRITE": 2, "IBV_ACCESS_REMOTE_READ": 4,
    "IBV_ACCESS_REMOTE_ATOMIC": 8, "IBV_ACCESS_MW_BIND": 16, "IBV_ACCESS_ZERO_BASED": 32,
    "IBV_ACCESS_ON_DEMAND": 64, "IBV_ACCESS_HUGETLB": 0x80, "IBV_ACCESS_FLUSH_GLOBAL": 0x100,
    "IBV_ACCESS_FLUSH_PERSISTENT": 0x200, "IBV_ACCESS_RELAXED_ORDERING": 0x100000,
})  # fmt: skip
ibv_rereg_mr_flags = IntEnum("ibv_rereg_mr_flags", {
    "IBV_REREG_MR_CHANGE_TRANSLATION": 1, "IBV_REREG_MR_CHANGE_PD": 2, "IBV_REREG_MR_CHANGE_ACCESS": 4,
})  # fmt: skip
ibv_rereg_mr_err_code = IntEnum("ibv_rereg_mr_err_code", {
    "IBV_REREG_MR_ERR_INPUT": -1, "IBV_REREG_MR_ERR_DONT_FORK_NEW": -2, "IBV_REREG_MR_ERR_DO_FORK_OLD": -3,
    "IBV_REREG_MR_ERR_CMD": -4, "IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW": -5,
})  # fmt: skip
ibv_mw_type = IntEnum("ibv_mw_type", "IBV_MW_TYPE_1 IBV_MW_TYPE_2")
ibv_placement_type = IntEnum("ibv_placement_type", "IBV_FLUSH_GLOBAL IBV_FLUSH_PERSISTENT")
ibv_selectivity_level = IntEnum("ibv_selectivity_level", {"IBV_FLUSH_MR": 1, "IBV_FLUSH_RANGE": 0})
