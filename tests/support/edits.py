"""Wrong inputs as data: edits of a good text, each with what is to be said of it, a row each in a YAML file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).parents[1]


def rows(name: str) -> list[list[str]]:
    """Return the rows of `tests/NAME.yaml`."""
    found: list[list[str]] = yaml.safe_load((TESTS / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def each(names: str, file: str) -> pytest.MarkDecorator:
    """Run a test with each row of a file, its cells under `names`."""
    return pytest.mark.parametrize(names.split(), rows(file))


def edited(text: str, old: str, new: str) -> str:
    """Return a text with one piece of it replaced, which has to be there."""
    assert old in text
    return text.replace(old, new, 1)
