"""NCCL's cost model and tuner: the times it expects, and the algorithm and protocol it chooses."""
