"""Compiled: fluid flows, their shares, and channels that meet on links."""
