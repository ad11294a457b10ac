"""What a run need not play, because it was played before: communications, and periods of long transfers."""
