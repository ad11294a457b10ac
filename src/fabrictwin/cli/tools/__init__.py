"""Commands that stand for tools people know: nccl-tests, perftest, rdma-core's, captures."""
