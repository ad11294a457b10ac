"""htsim's connection matrices, played over any fabric."""
