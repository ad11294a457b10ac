"""Runs over many values of a spec's keys: a table, and a page of the response."""
