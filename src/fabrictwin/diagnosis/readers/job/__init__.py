"""What jobs print: NCCL, benchmarks, RAS, flight recorders, launchers."""
