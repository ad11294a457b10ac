"""Routing engines, one a file, behind a registry."""
