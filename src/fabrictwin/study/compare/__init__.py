"""Fabrics side by side for one job."""
