"""Readers of what fabrics print: InfiniBand tools, counters, Ethernet ports, SONiC."""
