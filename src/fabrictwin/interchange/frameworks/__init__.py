"""Configurations of training frameworks, read into the `workload.training` section of a spec."""
