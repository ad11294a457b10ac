"""Programs of PyTorch on the twin: a c10d backend whose bytes are real and whose time is the cluster's.

The only room that imports torch, which is an extra (`fabrictwin[torch]`).
"""

NAME = "fabrictwin"  # of the backend
