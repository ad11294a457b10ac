"""Months of a training run: failures, restarts, spares, checkpoints, and the time that is left to train."""
