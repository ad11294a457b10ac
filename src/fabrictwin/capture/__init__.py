"""Captures: packets of the twin as files that other tools read, and a reader of such files."""
