"""What operators set of a manager."""
