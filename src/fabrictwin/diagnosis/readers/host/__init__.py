"""Readers of what hosts print: kernels, drivers, PCI, limits."""
