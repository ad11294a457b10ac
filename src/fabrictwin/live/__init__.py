"""Unmodified RDMA programs on the twin: the kernel's side of `/dev/infiniband`, answered from a preloaded library.

The program keeps its libibverbs and its librxe; `preload` (C, in the program's process) stands in front of libc
where they meet the kernel, and `server` answers it over the twin's adapters. What they agree on is the kernel's
interface for the rxe driver (uapi rdma/ib_user_verbs.h, rdma_user_rxe.h, rdma_user_cm.h).
"""
