"""What the program sets for itself before it imports libraries, and what other programs inherit of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_WANTED = {
    # threads for linear algebra, one a core, turn in a loop for a while before they sleep: on two cores a third of
    # what importing numpy costs; no matrix here is large enough for them
    "OPENBLAS_NUM_THREADS": "1",
    # pydantic reads the metadata of every package that is installed, to look for plugins
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
}
_ours: set[str] = set()


class _NotForNumba:
    """Finder that hides coverage from numba, which imports it where it is installed: a fifth of its own import."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "coverage":
            asks = sys.modules.get("numba.misc.coverage_support")
            if asks is not None and not hasattr(asks, "coverage_available"):  # it has not come beyond its imports
                raise ModuleNotFoundError(
                    "hidden from numba, which was not asked for NUMBA_JIT_COVERAGE", name=name
                )
        return None


def start_quickly() -> None:
    """Set what makes libraries start with less, unless the user chose; called before they are imported."""
    if "NUMBA_JIT_COVERAGE" not in os.environ:
        sys.meta_path.insert(0, _NotForNumba)
    for name, value in _WANTED.items():
        if name not in os.environ:
            os.environ[name] = value
            _ours.add(name)


def inherited() -> dict[str, str]:
    """Return the environment for programs of the user's: as it was given to this one."""
    return {name: value for name, value in os.environ.items() if name not in _ours}
