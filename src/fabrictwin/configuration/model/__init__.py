"""The neutral model: switches, hosts, an InfiniBand subnet, a scheduler's topology, manifests."""
