"""The engines behind the session interface."""
