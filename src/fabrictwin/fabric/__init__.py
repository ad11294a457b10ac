"""A cluster compiled into arrays, and look-ups over them."""
