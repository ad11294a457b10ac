"""What hosts print: kernels, drivers, PCI, limits."""
