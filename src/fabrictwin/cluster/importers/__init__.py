"""Real fabrics and hosts, read from what tools print of them."""
