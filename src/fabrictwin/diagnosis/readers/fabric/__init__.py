"""What fabrics print: InfiniBand tools, counters, Ethernet ports, SONiC."""
