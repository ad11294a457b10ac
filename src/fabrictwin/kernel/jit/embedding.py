"""Functions that become machine code only within those that call them.

numba optimises every function and emits its machine code as soon as it is compiled, and what it calls with it: a
function that is inlined through five others is optimised six times. None of the first five results is ever run
where only compiled code calls the function. A *part* is typed and lowered as always, and left at that; the entry
point that it is linked into is optimised as a whole.

Uses numba's documented way to add a compiler pass, and two methods of its code library that are not documented.
"""

from __future__ import annotations

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.typed_passes import AnnotateTypes


class _Part(JITCodeLibrary):
    """Code that is linked into others and never loaded by itself."""

    def _optimize_final_module(self):
        """Left to what it is linked into."""

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    @property
    def codegen(self):
        return self

    def set_env(self, name, environment):
        """Set no environment: what is not loaded has none."""


@register_pass(mutates_CFG=False, analysis_only=True)
class _AsPart(AnalysisPass):
    _name = "as_part"

    def __init__(self):
        AnalysisPass.__init__(self)

    def run_pass(self, state):
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        return False


class PartCompiler(CompilerBase):
    """numba's own passes, with a part for the code library."""

    def define_pipelines(self):
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.add_pass_after(_AsPart, AnnotateTypes)
        manager.finalize()
        return [manager]
