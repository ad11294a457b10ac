"""Compiled: graphs of operations and pipelines, walked without an engine."""
