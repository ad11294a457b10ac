"""Inference servers on the twin: vLLM's scheduler and KV cache, arrivals, step times, what a client sees."""
