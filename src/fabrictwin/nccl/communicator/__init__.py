"""Communicators: ranks on hosts, channels, rings and trees across hosts."""
