"""Graphs that NCCL finds on hosts: its search, in its order, remembered."""
