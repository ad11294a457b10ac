"""Engines that run steps under a clock, behind a router, for clients that wait."""
