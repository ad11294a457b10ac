"""How kernels are compiled: one place for every compiler option, and for the cache.

Numba's on-disk cache does not notice when a helper in *another* file changes (numba issue 9483), so the cache
lives in a folder named by a digest of all kernel sources and the numba version. Importing this module sets it,
and every kernel imports this module first.

`cache_folder` says where the cache lies and who may write there.
With `NUMBA_DISABLE_JIT=1` the decorators leave the functions as they are.

Compile and load times rest on parts of numba that it does not document: `_nrt`, `get_call_template`, how a cache
is loaded (`_load_overload`, what `loading` uses), what `embedding` and `by_reference` use, and the address that
`packet.stepping` calls. `FABRICTWIN_PLAIN_NUMBA=1` does without all of them: the same results from `numba.njit`
alone, after minutes of compiling. A test holds each of them to the version of numba that is installed;
pyproject.toml has the newest that was tried.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numba
from numba import config, types
from numba.extending import register_jitable

from fabrictwin.kernel.jit.cache_folder import cache_folder
from fabrictwin.kernel.jit.embedding import PartCompiler
from fabrictwin.kernel.jit.loading import load_lazily
from fabrictwin.kernel.jit.plain import PLAIN

_KERNEL = Path(__file__).parents[1]


def _digest() -> str:
    """Return a digest of every kernel source and of what compiles it."""
    digest = hashlib.sha256(f"{numba.__version__} {config.OPT} {config.BOUNDSCHECK} {PLAIN}".encode())
    for source in sorted(_KERNEL.rglob("*.py")):
        digest.update(str(source.relative_to(_KERNEL)).encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


if not config.DISABLE_JIT:
    config.CACHE_DIR = str(cache_folder(f"kernels/{_digest()}"))


def _wide(argument):
    """Return one type for all widths, constants and codes: numba would compile each of them anew."""
    if isinstance(argument, types.Literal):
        argument = types.unliteral(argument)
    if isinstance(argument, types.IntEnumMember):
        return types.intp
    if isinstance(argument, types.Integer) and argument.bitwidth < types.intp.bitwidth:
        return types.intp
    return argument


def _for_all_widths(dispatcher):
    """Compile a function once for integers of all widths, and not anew for every constant that it is called with.

    LLVM sees the constants where it inlines. Arguments come out as what the only signature asks for.
    """
    resolve = getattr(dispatcher, "get_call_template", None)
    if resolve is not None:  # otherwise the JIT is off

        def get_call_template(arguments, keywords):
            return resolve(tuple(map(_wide, arguments)), {name: _wide(a) for name, a in keywords.items()})

        dispatcher.get_call_template = get_call_template
    return dispatcher


def _called(**options):
    """Return a decorator of functions that only compiled code calls."""
    if PLAIN:
        return numba.njit
    compiled = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=PartCompiler, **options)
    return lambda function: _for_all_widths(compiled(function))


def _entry(**options):
    """Return a decorator of functions that Python calls: cached on disk, loaded from there with little else."""
    compiled = numba.njit(cache=True, nogil=True, **options)

    def decorate(function):
        dispatcher = compiled(function)
        if hasattr(dispatcher, "_cache"):  # otherwise the JIT is off
            load_lazily(dispatcher)
        return dispatcher

    return numba.njit(cache=True, nogil=True) if PLAIN else decorate


# An entry point: called from Python, cached on disk, releases the GIL.
entry = _entry()

# A helper that LLVM inlines into its caller. No reference counting (`_nrt`, semi-private in numba): a helper
# allocates nothing, and counting references on every array it is handed costs a factor of ten.
helper = _called(forceinline=True, _nrt=False)

# A function that only other compiled code calls, without a say in how it is inlined.
inner = _called()

# A helper that stays a call of its own: rare paths, and code too long to inline.
outlined = _called(_nrt=False)

# An entry point whose whole call tree allocates nothing.
hot_entry = entry if PLAIN else _entry(_nrt=False)

# Of several states, reached by their addresses (`by_reference.table_at`); without addresses these stay Python's,
# and what they and compiled code call is both.
across = (lambda function: function) if PLAIN else outlined
across_entry = (lambda function: function) if PLAIN else hot_entry
across_helper = register_jitable if PLAIN else helper
