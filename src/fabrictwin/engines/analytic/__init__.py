"""The analytic engine: closed forms of latency and bandwidth."""
