"""GIDs, as `pyverbs.addr` has them."""

from __future__ import annotations

from fabrictwin.verbs.pyverbs.base import PyverbsObject
from fabrictwin.verbs.pyverbs.utils import gid_bytes, gid_text


class GID(PyverbsObject):
    """A 128-bit address of a port."""

    __slots__ = ("raw",)

    def __init__(self, val: str | None = None) -> None:
        self.raw = bytes(16) if val is None else gid_bytes(val)

    @classmethod
    def of(cls, raw: bytes) -> GID:
        made = cls()
        made.raw = raw
        return made

    @property
    def gid(self) -> str:
        """The text `xxxx:xxxx:...`, eight groups of four digits."""
        return gid_text(self.raw)

    @gid.setter
    def gid(self, val: str) -> None:
        self.raw = gid_bytes(val)

    def __str__(self) -> str:
        return gid_text(self.raw)
