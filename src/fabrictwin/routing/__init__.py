"""Forwarding tables: one routing engine a file, behind a registry."""
