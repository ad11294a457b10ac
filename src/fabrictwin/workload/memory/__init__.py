"""The memory that a training step takes on a GPU."""
