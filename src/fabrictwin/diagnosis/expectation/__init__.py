"""The expectation: which hardware the files show, and what the twin says of it."""
