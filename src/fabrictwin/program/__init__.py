"""The operations a rank can do, and how collectives lower to them."""
