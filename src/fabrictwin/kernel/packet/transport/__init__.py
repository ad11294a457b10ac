"""Queue pairs: what they send, receive and answer, and the messages on them."""
