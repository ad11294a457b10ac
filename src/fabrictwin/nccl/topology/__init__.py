"""What NCCL detects on a host: devices, links, paths, networks."""
