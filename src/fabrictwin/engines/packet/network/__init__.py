"""The packet kernel over one fabric: wiring, configuration, connections, faults, counters."""
