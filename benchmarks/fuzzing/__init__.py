"""What `fuzz.py` feeds: inputs, and everything that reads what others wrote as targets."""
