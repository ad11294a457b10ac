"""Captures: a program of PyTorch as some ranks of many, with tensors that have shapes and no values."""
