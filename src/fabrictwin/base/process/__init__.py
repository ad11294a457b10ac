"""The process itself: how it ends, how it is interrupted, and what others inherit from it."""
