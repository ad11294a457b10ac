"""What compiled functions on several threads need: atomic counters, and a way to wait that lets others run.

Works on int64 arrays; each counter belongs on a cache line of its own. With the JIT off there is one thread, and
plain reads and writes do.
"""

from __future__ import annotations

from numba import config, types
from numba.extending import intrinsic

from fabrictwin.kernel.jit.plain import PLAIN

SPINS = 256  # looks at a counter before the core is given to others

THREADED = not (config.DISABLE_JIT or PLAIN)

if not THREADED:

    def atomic_add(array, index, value):
        """Add to a counter and return what it was."""
        before = array[index]
        array[index] = before + value
        return before

    def atomic_load(array, index):
        """Return a counter; what its writer wrote before can be read after."""
        return array[index]

    def atomic_store(array, index, value):
        """Set a counter; what was written before can be read by whoever reads it."""
        array[index] = value

    def yield_core():
        """Let others run: there are none."""

else:

    def _address(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.gep(view.data, [context.cast(builder, args[1], signature.args[1], types.intp)])

    @intrinsic
    def atomic_add(typingctx, array, index, value):
        """Add to a counter and return what it was."""

        def codegen(context, builder, signature, args):
            more = context.cast(builder, args[2], signature.args[2], types.int64)
            return builder.atomic_rmw("add", _address(context, builder, signature, args), more, "seq_cst")

        return types.int64(array, index, value), codegen

    @intrinsic
    def atomic_load(typingctx, array, index):
        """Return a counter; what its writer wrote before can be read after."""

        def codegen(context, builder, signature, args):
            return builder.load_atomic(_address(context, builder, signature, args), "acquire", 8)

        return types.int64(array, index), codegen

    @intrinsic
    def atomic_store(typingctx, array, index, value):
        """Set a counter; what was written before can be read by whoever reads it."""

        def codegen(context, builder, signature, args):
            new = context.cast(builder, args[2], signature.args[2], types.int64)
            builder.store_atomic(new, _address(context, builder, signature, args), "release", 8)
            return context.get_dummy_value()

        return types.void(array, index, value), codegen

    @intrinsic
    def yield_core(typingctx):
        """Let others run on this core (POSIX sched_yield)."""
        from llvmlite import ir
        from numba.core import cgutils

        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
            return context.get_dummy_value()

        return types.void(), codegen
