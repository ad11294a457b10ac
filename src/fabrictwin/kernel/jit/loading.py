"""How what was compiled before is loaded: with what runs it, and without what would compile on from there.

numba's own way first makes ready all that it could compile with, a tenth of a second, compiles the functions that
count references, and reads the bitcode of every kernel beside its machine code. Machine code has the counting of
references in it; bitcode is read where a kernel that is compiled now links one that was loaded.
"""

from __future__ import annotations

from functools import cache as once

from llvmlite import binding
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult
from numba.core.runtime import _nrt_python


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


def load_lazily(cache):
    """Have a dispatcher's cache load its functions so."""

    def rebuild(target, payload):
        result = CompileResult._rebuild(_LoadingContext(target), *payload)
        return result._replace(target_context=target)

    def load_overload(signature, target):
        _name_runtime()
        with cache._guard_against_spurious_io_errors():
            return cache._load_overload(signature, target)

    cache._impl.rebuild = rebuild
    cache.load_overload = load_overload
