"""KV blocks as vLLM's V1 engine keeps them: a pool, groups of layers, prefix hits."""
