"""What answers have in common: plain data, and a page."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


class Answer(ABC):
    """An answer that is plain data too."""

    @property
    @abstractmethod
    def data(self) -> dict[str, Any]:
        """Plain data; units are in the keys."""

    def json(self) -> str:
        """Return `data` as text."""
        return json.dumps(self.data, indent=2) + "\n"


class PagedAnswer(Answer):
    """An answer that is one page with plots."""

    @abstractmethod
    def _page(self) -> str:
        """Return the page as HTML."""

    def save(self, path: str | Path) -> Path:
        """Write the page and return its path. Raises ConfigError."""
        from fabrictwin.base.textfile import write_text

        write_text(Path(path), self._page())
        return Path(path)
