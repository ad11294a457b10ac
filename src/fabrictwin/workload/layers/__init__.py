"""Layers as kernels by shape, and the time that each takes."""
