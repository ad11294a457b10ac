"""What a server's ranks send each other, on the cluster's own routes."""
