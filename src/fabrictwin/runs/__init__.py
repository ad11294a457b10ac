"""A run: from a spec to a folder of results."""
