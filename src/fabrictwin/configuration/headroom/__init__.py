"""Bytes that arrive after a pause was asked for, by chip: one file a formula, each with its source."""
