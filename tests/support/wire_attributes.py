"""The structures that a module of `subnet.wire` defines."""

from __future__ import annotations

from types import ModuleType

from fabrictwin.subnet.wire.fields import Attribute


def attributes_of(module: ModuleType) -> list[type[Attribute]]:
    """Return every attribute that goes over the wire by itself, in the order of the module."""
    return [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Attribute)
        and kind.SIZE
        and kind.__module__ == module.__name__
    ]
