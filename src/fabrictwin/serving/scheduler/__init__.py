"""The scheduler of vLLM's V1 engine as a state machine without clock, threads or I/O."""
