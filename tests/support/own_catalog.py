"""A folder with hardware of one's own, added to the catalog while a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fabrictwin.catalog import answers


def _forget() -> None:
    answers._kind.cache_clear()
    answers.sources.cache_clear()


@contextmanager
def own_catalog(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(answers.FOLDER, str(folder))
        _forget()
        yield
    _forget()
