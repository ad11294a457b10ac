"""Requests that arrive: when, how long, and which of their tokens they share."""
