"""How functions are compiled: decorators, their cache, and what of numba they rest on."""
