"""What a training step holds in a GPU's memory."""
