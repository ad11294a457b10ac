"""The `workload.serving` section, and what follows from it on a cluster's GPUs."""
