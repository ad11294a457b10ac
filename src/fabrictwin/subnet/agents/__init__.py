"""What every node of a fabric answers to management: its state, the agents in it, the way datagrams take there."""
