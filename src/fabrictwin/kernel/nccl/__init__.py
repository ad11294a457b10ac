"""Compiled: the search for channels inside a host."""
