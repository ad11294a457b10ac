"""Management agents of every node of a fabric: its state, the agents in it, the way datagrams take there."""
