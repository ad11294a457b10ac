"""What layers compute: kernels by shape, and how long each takes."""
