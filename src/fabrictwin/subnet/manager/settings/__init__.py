"""Settings of a manager."""
