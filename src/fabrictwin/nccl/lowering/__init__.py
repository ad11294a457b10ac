"""Collectives and sends as communications: channels, transports, chunks, costs."""
