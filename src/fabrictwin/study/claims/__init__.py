"""Common statements about these technologies, each tested on the twin."""
