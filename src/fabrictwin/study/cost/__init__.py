"""What a cluster costs, and what a job on it does."""
