"""Memory that a program's tensors hold, by the storages that its operators return."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch

from fabrictwin.torch.operator_recorder import tensors_of


class TensorMemory:
    """Bytes held now, and at most."""

    def __init__(self) -> None:
        self.held = self.most = 0
        self._sizes: dict[int, int] = {}
        self._alive: dict[int, Any] = {}

    def returned(self, result: Any) -> None:
        """Count the storages of an operator's results, each once."""
        for one in tensors_of(result):
            if one.device.type != "meta":
                self._storage(one.untyped_storage())

    def resized(self, storage: Any) -> None:
        """Count a storage anew whose size was changed."""
        if storage._cdata in self._sizes:
            self._size(storage._cdata, storage.nbytes())

    def watch_resizes(self) -> None:
        """Learn of storages that sharded modules free and allocate again."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            found = original(storage, size)
            self.resized(storage)
            return found

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]

    def _storage(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._alive[key] = weakref.ref(storage, partial(self._freed, key))
            self._size(key, storage.nbytes())
        elif self._sizes[key] != storage.nbytes():
            self._size(key, storage.nbytes())

    def _size(self, key: int, size: int) -> None:
        self.held += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.most = max(self.most, self.held)

    def _freed(self, key: int, _: object) -> None:
        self.held -= self._sizes.pop(key, 0)
        self._alive.pop(key, None)


MEMORY = TensorMemory()  # of this process
