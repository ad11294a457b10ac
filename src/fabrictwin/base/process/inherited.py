"""What the program sets in its environment for itself, and what other programs inherit from it."""

from __future__ import annotations

import os

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_ours: set[str] = set()


def use_one_blas_thread() -> None:
    """Have numpy start no threads for linear algebra, unless the user chose; called before its import.

    One a core, they turn in a loop for a while before they sleep: on two cores a third of what importing numpy
    costs. No matrix here is large enough for them.
    """
    if _BLAS_THREADS not in os.environ:
        os.environ[_BLAS_THREADS] = "1"
        _ours.add(_BLAS_THREADS)


def inherited() -> dict[str, str]:
    """Return the environment for programs of the user's: as it was given to this one."""
    return {name: value for name, value in os.environ.items() if name not in _ours}
