"""Memory regions, windows and protection domains. Values of `infiniband/verbs.h`, rdma-core's ABI."""

from __future__ import annotations

from enum import IntEnum


class ibv_access_flags(IntEnum):
    IBV_ACCESS_LOCAL_WRITE = 1
    IBV_ACCESS_REMOTE_WRITE = 2
    IBV_ACCESS_REMOTE_READ = 4
    IBV_ACCESS_REMOTE_ATOMIC = 8
    IBV_ACCESS_MW_BIND = 16
    IBV_ACCESS_ZERO_BASED = 32
    IBV_ACCESS_ON_DEMAND = 64
    IBV_ACCESS_HUGETLB = 0x80
    IBV_ACCESS_FLUSH_GLOBAL = 0x100
    IBV_ACCESS_FLUSH_PERSISTENT = 0x200
    IBV_ACCESS_RELAXED_ORDERING = 0x100000


class ibv_rereg_mr_flags(IntEnum):
    IBV_REREG_MR_CHANGE_TRANSLATION = 1
    IBV_REREG_MR_CHANGE_PD = 2
    IBV_REREG_MR_CHANGE_ACCESS = 4


class ibv_rereg_mr_err_code(IntEnum):
    IBV_REREG_MR_ERR_INPUT = -1
    IBV_REREG_MR_ERR_DONT_FORK_NEW = -2
    IBV_REREG_MR_ERR_DO_FORK_OLD = -3
    IBV_REREG_MR_ERR_CMD = -4
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5


class ibv_mw_type(IntEnum):
    IBV_MW_TYPE_1 = 1
    IBV_MW_TYPE_2 = 2


class ibv_mr_init_attr_mask(IntEnum):
    IBV_REG_MR_MASK_IOVA = 1
    IBV_REG_MR_MASK_ADDR = 2
    IBV_REG_MR_MASK_FD = 4
    IBV_REG_MR_MASK_FD_OFFSET = 8
    IBV_REG_MR_MASK_DMAH = 16
    IBV_REG_MR_MASK_BUF = 32


class ibv_tph_mem_type(IntEnum):
    IBV_TPH_MEM_TYPE_VM = 0
    IBV_TPH_MEM_TYPE_PM = 1


class ibv_dmah_init_attr_mask(IntEnum):
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1
    IBV_DMAH_INIT_ATTR_MASK_PH = 2
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 4


class ibv_placement_type(IntEnum):
    IBV_FLUSH_GLOBAL = 1
    IBV_FLUSH_PERSISTENT = 2


class ibv_selectivity_level(IntEnum):
    IBV_FLUSH_MR = 1
    IBV_FLUSH_RANGE = 0


class ibv_parent_domain_init_attr_mask(IntEnum):
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 2
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 4


class ibv_xrcd_init_attr_mask(IntEnum):
    IBV_XRCD_INIT_ATTR_FD = 1
    IBV_XRCD_INIT_ATTR_OFLAGS = 2
    IBV_XRCD_INIT_ATTR_RESERVED = 4
