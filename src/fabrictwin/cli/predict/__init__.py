"""Commands that predict: a run, and studies of many runs."""
