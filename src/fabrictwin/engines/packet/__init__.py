"""The packet engine: every message as packets on queue pairs."""
