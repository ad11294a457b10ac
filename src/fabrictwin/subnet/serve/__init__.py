"""The endpoint for real tools: datagrams over sockets, a console."""
