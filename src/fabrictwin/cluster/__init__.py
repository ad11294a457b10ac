"""Descriptions that people write or import: the spec, topology generators, importers and exporters."""
