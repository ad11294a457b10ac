"""What a benchmark's client reports of a server."""
