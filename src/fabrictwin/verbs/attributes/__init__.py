"""What devices and queue pairs are and can do, as attribute classes."""
