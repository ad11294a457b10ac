"""What NCCL expects algorithms and protocols to take, and which it chooses."""
