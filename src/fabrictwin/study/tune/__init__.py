"""Congestion control tuned for a fabric and its traffic."""
