"""Compiled: switch graphs, forwarding tables, and what they do."""
