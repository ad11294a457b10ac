"""What kernels take from numba beside its documented interface: each piece still is what it was written for."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tomllib
from enum import IntEnum
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import config, types
from numba.core import environment
from numba.core.caching import Cache, IndexDataCacheFile, NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult, DefaultPassBuilder
from numba.core.cpu import CPUContext
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError
from numba.core.runtime import rtsys

from fabrictwin.kernel.jit.decorators import helper, hot_entry, outlined
from fabrictwin.kernel.jit.embedding import _Part

compiled = pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled")


class Code(IntEnum):
    """Two members."""

    FIRST = 1
    SECOND = 2


def test_the_installed_numba_is_one_that_was_tried():
    """Dependencies have a ceiling, and what is installed lies below it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (wanted,) = [one for one in project["dependencies"] if one.startswith("numba")]
    ceiling = tuple(map(int, wanted.partition("<")[2].split(".")))
    assert tuple(map(int, numba.__version__.split(".")[:2])) < ceiling


@pytest.mark.parametrize("name", ["_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals"])
def test_a_code_library_still_ends_in_the_steps_that_a_part_leaves_out(name):
    assert list(inspect.signature(getattr(JITCodeLibrary, name)).parameters) == ["self"]
    source = inspect.getsource(JITCodeLibrary.finalize) if hasattr(JITCodeLibrary, "finalize") else ""
    source += inspect.getsource(JITCodeLibrary._finalize_final_module)
    assert name in source
    assert issubclass(_Part, JITCodeLibrary)


def test_the_pipeline_has_a_place_behind_type_annotation():
    assert "define_nopython_lowering_pipeline" in inspect.getsource(DefaultPassBuilder.define_nopython_pipeline)
    assert "AnnotateTypes" in inspect.getsource(DefaultPassBuilder.define_nopython_lowering_pipeline)


def test_calls_are_resolved_by_the_dispatchers_template():
    assert list(inspect.signature(Dispatcher.get_call_template).parameters) == ["self", "args", "kws"]


def test_a_cache_is_loaded_behind_a_refresh_and_a_guard():
    source = inspect.getsource(Cache.load_overload)
    assert source.count("target_context.refresh()") == 1
    assert "with self._guard_against_spurious_io_errors():\n            return self._load_overload(" in source
    assert list(inspect.signature(Cache._load_overload).parameters) == ["self", "sig", "target_context"]
    assert "rtsys.initialize(self)" in inspect.getsource(CPUContext.load_additional_registries)


def test_what_a_cache_holds_is_read_from_one_file_and_its_environments_made_by_one_function():
    source = inspect.getsource(IndexDataCacheFile._load_data)
    assert "path = self._data_path(name)" in source
    assert "tup = pickle.loads(data)" in source
    assert list(inspect.signature(environment._rebuild_env).parameters) == ["modname", "consts", "env_name"]
    rebuilding = inspect.getsource(environment._rebuild_env)
    for step in ("env.consts[:] = consts", "env.env_name = env_name", "Environment._memo[env_name] = env"):
        assert step in rebuilding


def test_extensions_are_looked_for_by_one_method_of_a_dispatcher():
    assert "entrypoints.init_all()" in inspect.getsource(Dispatcher._compilation_chain_init_hook)


@compiled
def test_arrays_have_the_types_that_numba_gives_them():
    """Plain arrays of every layout and kind; what is none is refused or typed as before."""
    fortran, record = np.zeros((2, 3), order="F"), np.zeros(2, [("a", np.int32), ("b", np.float64)])
    fixed = np.zeros(3, np.int8)
    fixed.flags.writeable = False
    found = [str(numba.typeof(each)) for each in (fortran, fixed, np.zeros((4, 4))[::2, ::2], np.zeros(1, "U3"))]
    assert found == [
        "array(float64, 2d, F)",
        "readonly array(int8, 1d, C)",
        "array(float64, 2d, A)",
        "array([unichr x 3], 1d, C)",
    ]
    assert numba.typeof(record).dtype.fields.keys() == {"a", "b"}
    with pytest.raises(NumbaError, match="Unsupported array dtype"):
        numba.typeof(np.zeros(1, np.longdouble))
    with pytest.raises(NumbaError, match="MaskedArray"):
        numba.typeof(np.ma.masked_array([1]))


def test_what_a_cache_holds_is_made_into_a_library_by_the_targets_code_generator_alone():
    rebuilding = inspect.getsource(CompileResult._rebuild)
    assert rebuilding.count("target_context.codegen()") == 1
    assert "target_context.codegen().unserialize_library(libdata)" in rebuilding
    unserialise = inspect.getsource(JITCodeLibrary._unserialize)
    for step in ("enable_object_caching()", "_set_compiled_object(object_code)", "_finalize_final_module()"):
        assert f"self.{step}" in unserialise
    assert "object_code, shared_bitcode = data" in unserialise
    assert "self._impl.rebuild(target_context, data)" in inspect.getsource(Cache._load_overload)
    assert "self._shared_module" in inspect.getsource(JITCodeLibrary._get_module_for_linking)


def test_the_runtime_registers_its_functions_by_their_names():
    registering = inspect.getsource(type(rtsys).initialize)
    assert 'py_name.startswith("_")' in registering
    assert '"NRT_" + py_name' in registering
    assert "ll.add_symbol(c_name, c_address)" in registering


@compiled
@pytest.mark.parametrize("plain", ["0", "1"])
@pytest.mark.second
def test_a_cached_entry_is_loaded_without_what_compiles_it(tmp_path, plain):
    """It allocates and counts references; the second process loads what the first one compiled."""
    program = (
        "import sys, numpy as np\n"
        "from fabrictwin.kernel.flow import sums\n"
        "order = np.zeros(3, np.int32)\n"
        "made = sums.places_by(np.zeros(3, np.int64), np.array([1, 0, 1], np.int32), 2, np.zeros(2, np.int64),"
        " order, np.zeros(4, np.int32))\n"
        "loaded = [name in sys.modules for name in ('numba.np.arraymath', 'numba.np.arrayobj', 'numpy.ma')]\n"
        "print(made, order.tolist(), *loaded, sum(sums.places_by.stats.cache_hits.values()))\n"
    )
    environment = os.environ | {"FABRICTWIN_CACHE": str(tmp_path), "FABRICTWIN_PLAIN_NUMBA": plain}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    )
    slow = plain == "1"
    assert first == f"2 [1, 0, 2] True True {slow} 0\n"
    assert second == f"2 [1, 0, 2] {slow} {slow} {slow} 1\n"


@compiled
@pytest.mark.second
def test_what_was_loaded_is_linked_into_what_is_compiled_after_it(tmp_path):
    """Its bitcode is read then; and an entry that makes arrays runs though the runtime was not compiled."""
    (tmp_path / "kept.py").write_text(
        "import numpy as np\n"
        "from fabrictwin.kernel.jit.decorators import entry\n\n\n"
        "@entry\n"
        "def doubled(array):\n"
        "    made = np.empty(len(array), np.int64)\n"
        "    for at in range(len(array)):\n"
        "        made[at] = 2 * array[at]\n"
        "    return made\n"
    )
    program = (
        "import sys, numpy as np, kept\n"
        "from numba.core.runtime import rtsys\n"
        "print(kept.doubled(np.arange(3)).tolist(), rtsys._init, sum(kept.doubled.stats.cache_hits.values()))\n"
        "if len(sys.argv) > 1:\n"
        "    from after import more\n"
        "    print(more(np.arange(3)))\n"
    )
    (tmp_path / "after.py").write_text(
        "from fabrictwin.kernel.jit.decorators import entry\n"
        "from kept import doubled\n\n\n"
        "@entry\n"
        "def more(array):\n"
        "    return doubled(array).sum() + 1\n"
    )
    environment = os.environ | {"FABRICTWIN_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program, *more],
            env=environment | {"FABRICTWIN_PLAIN_NUMBA": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for more in ([], ["more"])
    )
    assert first == "[0, 2, 4] True 0\n"
    assert second == "[0, 2, 4] False 1\n7\n"


@compiled
def test_an_entry_without_reference_counts_has_none():
    @hot_entry
    def total(array):
        return array[1:].sum() if len(array) < 0 else array[0]

    total._cache = NullCache()  # numba shows nothing of what comes from there
    assert total(np.arange(3) + 5) == 5
    (signature,) = total.overloads
    code = total.inspect_llvm(signature)
    assert "define" in code
    assert "NRT_incref" not in "".join(line for line in code.splitlines() if line.lstrip().startswith("call"))


@compiled
def test_codes_and_narrow_integers_are_handed_on_as_one_type():
    @outlined
    def doubled(value):
        return 2 * value

    @numba.njit
    def both():
        return doubled(Code.SECOND) + doubled(np.int32(3)) + doubled(4)

    assert both() == 4 + 6 + 8
    assert list(doubled.overloads) == [(types.intp,)]


@compiled
def test_a_part_has_no_machine_code_of_its_own():
    @helper
    def squared(value):
        return value * value

    @hot_entry
    def use(value):
        return squared(value) + 1

    assert use(7) == 50
    (part,) = squared.overloads.values()
    assert isinstance(part.library, _Part)


@compiled
def test_a_compiled_function_has_an_address():
    @hot_entry
    def one(value):
        return value + 1

    one.compile((types.int64,))
    found = one.overloads[(types.int64,)]
    assert found.library.get_pointer_to_function(found.fndesc.llvm_func_name) > 0
