"""Channels of collectives over a fabric: paths of their edges, resources, latency, contention."""
