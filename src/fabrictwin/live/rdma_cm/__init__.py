"""The connection manager behind /dev/infiniband/rdma_cm (uapi rdma/rdma_user_cm.h), over the twin's addresses.

States, events and what each side is told follow drivers/infiniband/core/cma.c and ucma.c. Its datagrams take no
modelled time. AF_IB addresses are refused, so librdmacm keeps to IP.
"""
