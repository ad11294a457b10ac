"""Settings: NCCL_* variables, releases, and the `nccl` section of a spec."""
