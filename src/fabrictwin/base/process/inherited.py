"""What the program sets in its environment for itself, and what other programs inherit from it."""

from __future__ import annotations

import os

_WANTED = {
    # threads for linear algebra, one a core, turn in a loop for a while before they sleep: on two cores a third of
    # what importing numpy costs; no matrix here is large enough for them
    "OPENBLAS_NUM_THREADS": "1",
    # pydantic reads the metadata of every package that is installed, to look for plugins
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
}
_ours: set[str] = set()


def start_quickly() -> None:
    """Set what makes libraries start with less, unless the user chose; called before they are imported."""
    for name, value in _WANTED.items():
        if name not in os.environ:
            os.environ[name] = value
            _ours.add(name)


def inherited() -> dict[str, str]:
    """Return the environment for programs of the user's: as it was given to this one."""
    return {name: value for name, value in os.environ.items() if name not in _ours}
