"""Attribute classes of devices and queue pairs."""
