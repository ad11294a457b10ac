"""TCP sockets held against published latencies and bandwidths."""
