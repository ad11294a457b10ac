"""The search for a layout, and what changes would gain."""
