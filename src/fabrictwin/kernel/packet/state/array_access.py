"""How the kernel reaches its arrays: without a look back for negative indices, and ahead of time.

numba takes an index below zero from the end, as Python does, which costs three instructions at every access; the
kernel has no such index. What an event touches is asked for some events before, so that it need not wait for it.
Neither changes a result.
"""

from __future__ import annotations

from numba import config, types
from numba.extending import intrinsic, register_jitable

from fabrictwin.kernel.jit.plain import PLAIN
from fabrictwin.kernel.packet.state.records import CACHE_LINE

if config.DISABLE_JIT or PLAIN:

    @register_jitable
    def place(index):
        """An index that is not negative."""
        return index

    @register_jitable
    def prefetch(array, index, line):
        """Nothing: the interpreter has no use for it."""

else:

    @intrinsic
    def place(typingctx, index):
        """An index that is not negative."""

        def codegen(context, builder, signature, args):
            return context.cast(builder, args[0], signature.args[0], types.intp)

        return types.uintp(index), codegen

    @intrinsic
    def prefetch(typingctx, array, index, line):
        """Ask for a cache line of `array[index]`, the first or a later one."""
        from llvmlite import ir
        from numba.core import cgutils

        def codegen(context, builder, signature, args):
            array_type = signature.args[0]
            struct = context.make_array(array_type)(context, builder, args[0])
            size = context.get_constant(types.intp, array_type.dtype.bitwidth // 8)
            byte = ir.IntType(8).as_pointer()
            start = builder.bitcast(struct.data, byte)
            index = context.cast(builder, args[1], signature.args[1], types.intp)
            line = context.cast(builder, args[2], signature.args[2], types.intp)
            offset = builder.add(builder.mul(index, size), builder.mul(line, ir.Constant(line.type, CACHE_LINE)))
            address = builder.gep(start, [offset])
            i32 = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32]), "llvm.prefetch.p0"
            )
            builder.call(function, [address, ir.Constant(i32, 1), ir.Constant(i32, 3), ir.Constant(i32, 1)])
            return context.get_dummy_value()

        return types.void(array, index, line), codegen
