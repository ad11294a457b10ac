"""Studies of inference servers: what a token costs, what would gain most, layouts for an objective, fabrics."""
