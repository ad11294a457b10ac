"""How kernels are compiled: one place for every compiler option, and for the cache.

Numba's on-disk cache does not notice when a helper in *another* file changes (numba issue 9483), so the cache
lives in a folder named by a digest of all kernel sources and the numba version. Importing this module sets it,
and every kernel imports this module first.

`FABRICTWIN_CACHE` names another place for the cache; where none is writable, a temporary folder serves.
With `NUMBA_DISABLE_JIT=1` the decorators leave the functions as they are.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import numba
from numba import config

_HERE = Path(__file__).parent


def _digest() -> str:
    """Digest of every kernel source and of what compiles it."""
    digest = hashlib.sha256(f"{numba.__version__} {config.OPT} {config.BOUNDSCHECK}".encode())
    for source in sorted(_HERE.rglob("*.py")):
        digest.update(str(source.relative_to(_HERE)).encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    named = os.environ.get("FABRICTWIN_CACHE")
    base = (
        Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fabrictwin"
    )
    folder = base / "kernels" / _digest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"fabrictwin-{os.getuid()}" / folder.name
        folder.mkdir(parents=True, exist_ok=True)
    return folder


config.CACHE_DIR = str(_cache_folder())

# An entry point: called from Python, cached on disk, releases the GIL.
entry = numba.njit(cache=True, nogil=True)

# A helper that LLVM inlines into its caller. No reference counting (`_nrt`, semi-private in numba): a helper
# allocates nothing, and counting references on every array it is handed costs a factor of ten.
helper = numba.njit(forceinline=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)

# A function that only other compiled code calls, without a say in how it is inlined.
inner = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)

# A helper that stays a call of its own: rare paths, and code too long to inline.
outlined = numba.njit(_nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)

# An entry point whose whole call tree allocates nothing.
hot_entry = numba.njit(cache=True, nogil=True, _nrt=False)
