"""The lines that NCCL prints with NCCL_DEBUG."""
