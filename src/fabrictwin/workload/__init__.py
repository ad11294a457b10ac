"""Everything that lowers to a program: training, inference, imported traces."""
