"""Readers of what jobs print: NCCL, benchmarks, RAS, flight recorders, launchers."""
