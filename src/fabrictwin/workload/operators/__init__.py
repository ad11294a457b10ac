"""Times of kernels by shape: forms with few constants, and what was measured beside them."""
