"""The model as files, one module a target."""
