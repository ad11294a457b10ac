"""A training step: as a program, and in closed form."""
