"""InfiniBand management: datagrams, agents that answer them, the subnet manager, the endpoint for real tools."""
