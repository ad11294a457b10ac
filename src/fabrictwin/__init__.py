"""fabrictwin: a digital twin of the network that turns many GPUs into one computer."""

__version__ = "0.1.0"
