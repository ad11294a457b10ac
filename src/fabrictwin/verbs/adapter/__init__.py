"""What an RDMA adapter does: keys and memory, queues, queue pairs. Knows nothing of the interface above it."""
