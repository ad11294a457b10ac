"""What NCCL prints with NCCL_DEBUG."""
