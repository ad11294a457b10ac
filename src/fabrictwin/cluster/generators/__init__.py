"""Blueprints of clusters that a spec describes: regular topologies, or every cable by itself."""
