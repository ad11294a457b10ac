"""rdma-core's and OFED's tools that show a host's adapters."""
