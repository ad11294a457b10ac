"""A managed fabric in operation: managers at work, what happens to it, what that changed."""
