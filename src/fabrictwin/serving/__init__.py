"""Inference servers on the twin: vLLM's scheduler, its KV cache, arrivals, the time of a step, and what a client sees."""
