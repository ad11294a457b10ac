"""Rules: from evidence to findings, by mechanism."""
