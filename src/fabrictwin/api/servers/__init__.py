"""Inference servers from Python: what a benchmark would print, layouts for an objective, fabrics side by side."""
