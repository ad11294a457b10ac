"""The transport layer of a queue pair: requester, responder, states of a request."""
