"""Published measurements, and what the twin says of each."""
