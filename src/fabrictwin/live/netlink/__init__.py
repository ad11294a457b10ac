"""RDMA netlink: what `rdma`, libibverbs and librdmacm ask the kernel about its devices."""
