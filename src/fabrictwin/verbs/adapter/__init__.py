"""An RDMA adapter: keys and memory, queues, queue pairs. Knows nothing of the interface above it."""
