"""Constants of the twin fitted to measurements of one's own."""
