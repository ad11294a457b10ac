"""The living thing: fabric, tables, clock and session together."""
