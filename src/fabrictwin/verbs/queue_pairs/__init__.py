"""Queue pairs as programs hold them."""
