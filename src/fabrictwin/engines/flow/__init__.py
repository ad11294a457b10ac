"""The flow engine: messages as fluid flows with max-min fair rates."""
