"""Mechanisms: which words of which programs point to which cause, kept as data that grows without code."""
