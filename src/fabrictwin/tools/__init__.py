"""Tools that operators know, on the twin."""
