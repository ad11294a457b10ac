"""Sweeps: what is found, named and programmed."""
