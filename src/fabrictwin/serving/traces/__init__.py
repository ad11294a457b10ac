"""Traces of requests in the formats in which they are published."""
