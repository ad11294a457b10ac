"""The version, in one place: the package, its wheel and its files name it."""

__version__ = "0.2.0"
