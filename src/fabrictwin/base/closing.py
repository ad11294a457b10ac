"""Objects that are closed by hand or by a `with` statement."""

from __future__ import annotations

from typing import Self


class Closing:
    """Base class of what a `with` statement closes at its end."""

    def close(self) -> None:
        """Give back what the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
