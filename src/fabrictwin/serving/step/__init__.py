"""How long a step takes, from what runs in it."""
