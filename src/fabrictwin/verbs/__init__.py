"""The RDMA programming interface on the twin, in the names of rdma-core's pyverbs."""
