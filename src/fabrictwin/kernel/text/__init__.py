"""Compiled: text read as bytes, block by block."""
