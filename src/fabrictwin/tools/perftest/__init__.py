"""perftest's tools on the twin: bandwidth and latency of one operation between two hosts, packet by packet."""
