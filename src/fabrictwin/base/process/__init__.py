"""The process itself: how it is interrupted, and what others inherit from it."""
