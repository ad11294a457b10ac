"""Names that programs import in vain: flow steering, tag matching's kin, dma-buf, vendor providers.

Such a class can be named, subclassed and tested for; making one fails with EOPNOTSUPP, as on a device without it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure


def absent(name: str, what: str) -> type[PyverbsCM]:
    """A class that cannot be made."""

    def refuse(self: PyverbsCM, *args: Any, **kwargs: Any) -> None:
        raise failure(f"Failed to create {name}: {what}", errno.EOPNOTSUPP)

    return type(name, (PyverbsCM,), {"__init__": refuse, "__doc__": f"{what}."})


class Bag(PyverbsObject):
    """Attributes of something that cannot be made: kept, never read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arguments = args
        vars(self).update(kwargs)


class _Nameless(type):
    """A provider's class or enum: every name in it stands for 0."""

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0

    def __iter__(cls) -> Iterator[int]:
        return iter(())


def provider_module(name: str) -> ModuleType:
    """A vendor provider's module: any name can be imported from it, nothing in it can be made."""
    module = ModuleType(name, "A vendor's provider, which the twin's adapters have none of.")

    def find(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        if wanted.lstrip("_").isupper():
            return 0

        def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
            from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError

            raise PyverbsUserError(f"{wanted} needs a vendor's provider, which the twin's adapters have none of")

        made = _Nameless(wanted, (PyverbsCM,), {"__init__": refuse, "__module__": name})
        setattr(module, wanted, made)
        return made

    module.__getattr__ = find  # type: ignore[method-assign]
    return module
