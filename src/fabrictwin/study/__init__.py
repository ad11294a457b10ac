"""Answers that need many runs: fabrics side by side, what jitter costs, what it all costs, which claims hold."""
