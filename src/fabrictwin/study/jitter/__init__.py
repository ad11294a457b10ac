"""What unevenness costs a job."""
