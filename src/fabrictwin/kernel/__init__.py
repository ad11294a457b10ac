"""The compiled simulation. Numba only: integers and arrays in, status codes out."""
