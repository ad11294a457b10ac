"""Rules on the model: what breaks losslessness, or costs bandwidth."""
