"""The columns of what happened."""
