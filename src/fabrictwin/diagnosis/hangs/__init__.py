"""Hangs: who is missing, late or different, and who waits for whom."""
