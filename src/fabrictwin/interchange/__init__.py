"""Traces of jobs that ran elsewhere, read into captured jobs, and captured jobs written for other simulators."""
