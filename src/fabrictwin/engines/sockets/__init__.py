"""Closed forms of TCP sockets between two hosts: bandwidth of streams, time of requests."""
