"""How a cluster is to be configured: numbers chosen for its links and chips, and why."""
