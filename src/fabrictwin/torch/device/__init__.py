"""The modelled GPU as programs of PyTorch see it: devices, streams, events, memory."""
