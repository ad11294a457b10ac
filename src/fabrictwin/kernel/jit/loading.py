"""How what was compiled before is loaded: with what runs it, and without what would compile on from there.

numba's own way first makes ready all that it could compile with, a tenth of a second, compiles the functions that
count references, and reads the bitcode of every kernel beside its machine code. Machine code has the counting of
references in it; bitcode is read where a kernel that is compiled now links one that was loaded.

It also imports each module that a kernel has code from, numba's own of arrays and text among them, because code
that runs in Python looks names up there: machine code does not. It looks through all installed packages for
extensions of numba, of which kernels know none, and imports numpy's masked arrays to tell that an array is none.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from functools import cache as once
from io import BytesIO

import numpy as np
from llvmlite import binding
from numba import types
from numba.core import environment
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult
from numba.core.errors import NumbaNotImplementedError
from numba.core.runtime import _nrt_python
from numba.extending import typeof_impl
from numba.np.numpy_support import from_dtype, map_layout


class _Loaded(JITCodeLibrary):
    """Code of a cache, whose bitcode is read when something asks for it."""

    def keep(self, kept):
        """Take the machine code and the bitcode that the cache has, and make the machine code ready to run."""
        machine_code, self._bitcode = kept
        self.enable_object_caching()
        self._set_compiled_object(machine_code)
        self._finalize_final_module()
        return self

    def get_pointer_to_function(self, name):
        """Return the address of a function, which numba would look for in the bitcode first; 0 without it."""
        return self._codegen._engine.get_function_address(name)

    def _get_module_for_linking(self):
        if self._shared_module is None:
            self._shared_module = binding.parse_bitcode(self._bitcode)
            self._codegen._engine._load_defined_symbols(self._shared_module)
        return super()._get_module_for_linking()


class _LoadingContext:
    """What `CompileResult._rebuild` asks of a target, for one library that is loaded lazily."""

    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        return getattr(self._target, name)

    def codegen(self):
        return self

    def unserialize_library(self, serialised):
        name, kind, kept = serialised
        codegen = self._target.codegen()
        if kind != "object":
            return codegen.unserialize_library(serialised)
        return _Loaded(codegen, name).keep(kept)


@once
def _name_runtime():
    """Name the functions of numba's runtime that machine code calls; what else it needs is made when compiling."""
    for name, address in _nrt_python.c_helpers.items():
        binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def _environment(module, constants, name):
    """Return the environment of a function of that name, without importing its module."""
    known = environment.lookup_environment(name)
    if known is not None:
        return known
    found = sys.modules.get(module)
    made = environment.Environment({"__name__": module} if found is None else found.__dict__)
    made.consts[:] = constants
    made.env_name = name
    environment.Environment._memo[name] = made
    return made


class _Reader(pickle.Unpickler):
    """Reads what a cache holds, environments without their modules."""

    def find_class(self, module, name):
        if (module, name) == (environment.__name__, "_rebuild_env"):
            return _environment
        return super().find_class(module, name)


@once
def _type_arrays():
    """Have numba type an array by what it is, and not look first whether it is a masked one."""
    types_of_others = typeof_impl.dispatch(np.ndarray)

    @typeof_impl.register(np.ndarray)
    def type_of(array, context):
        if type(array) is np.ndarray:
            with suppress(NumbaNotImplementedError):
                dtype = from_dtype(array.dtype)
                return types.Array(dtype, array.ndim, map_layout(array), readonly=not array.flags.writeable)
        return types_of_others(array, context)


def load_lazily(dispatcher):
    """Have a dispatcher load its functions from its cache so."""
    _type_arrays()
    cache = dispatcher._cache
    file = cache._cache_file

    def load_data(name):
        with open(file._data_path(name), "rb") as opened:
            return _Reader(BytesIO(opened.read())).load()

    def rebuild(target, payload):
        result = CompileResult._rebuild(_LoadingContext(target), *payload)
        return result._replace(target_context=target)

    def load_overload(signature, target):
        _name_runtime()
        with cache._guard_against_spurious_io_errors():
            return cache._load_overload(signature, target)

    dispatcher._compilation_chain_init_hook = lambda: None
    file._load_data = load_data
    cache._impl.rebuild = rebuild
    cache.load_overload = load_overload
