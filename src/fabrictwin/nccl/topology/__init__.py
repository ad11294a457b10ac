"""The topology that NCCL detects on a host: devices, links, paths, networks."""
