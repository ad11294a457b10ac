"""nccl-tests: its sizes, checks and table."""
