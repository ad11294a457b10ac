"""Readers of files: one for each family of formats, and the registry that recognises them."""
