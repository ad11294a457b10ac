"""A port and its switch: route, queue, arbitrate, transmit."""
