"""Launches of vLLM: command lines and container files read, judged and written."""
