"""Ground that every room stands on: errors, units, and how text and YAML that people wrote are read."""
