"""The loop called again and again on the same state, at little cost a call.

Handing over some forty arrays takes numba about 10 us, more than a small message's events. A compiled generator is
handed them once and keeps them; what changes from call to call it reads from an array. It calls the loop by its
address, as `loop.run` was compiled, so that nothing of it is compiled twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from numba import config, types
from numba.extending import intrinsic

from fabrictwin.kernel.jit.decorators import entry
from fabrictwin.kernel.jit.plain import PLAIN
from fabrictwin.kernel.packet.loop import run
from fabrictwin.kernel.packet.state.constants import SLICE_EVENTS

# columns of what a stepper is asked
ADDRESS = 0
UNTIL = 1
BUDGET = 2
DRAINED = 3  # whether what happens after everything is done counts too

if config.DISABLE_JIT or PLAIN:

    def call_loop(address: Any, state: Any, until: int, stop_when_done: bool, budget: int) -> int:
        """Call the loop."""
        return int(run(state, until, stop_when_done, budget))

    def steps(state: Any, ask: Any) -> Iterator[int]:
        """Statuses of one run after the other."""
        while True:
            yield run(state, int(ask[UNTIL]), not ask[DRAINED], int(ask[BUDGET]))

    def address(state: Any) -> int:
        """Return what nobody asks for."""
        return 0

else:

    @intrinsic
    def call_loop(typingctx, address, state, until, stop_when_done, budget):
        """Call the compiled loop by its address."""
        arguments = (state, types.int64, types.boolean, types.int64)

        def codegen(context, builder, signature, args):
            function = context.call_conv.get_function_type(types.int64, arguments)
            pointer = builder.inttoptr(args[0], function.as_pointer())
            _, result = context.call_conv.call_function(builder, pointer, types.int64, arguments, args[1:])
            return result

        return types.int64(types.int64, *arguments), codegen

    @entry
    def steps(state, ask):
        """Statuses of one run after the other, each to `ask[UNTIL]`, of at most `ask[BUDGET]` events."""
        while True:
            yield call_loop(ask[ADDRESS], state, ask[UNTIL], ask[DRAINED] == 0, ask[BUDGET])

    def address(state: Any) -> int:
        """Return the address of the loop for a state of this type; it is compiled where it is not yet."""
        signature = (numba.typeof(state), types.int64, types.boolean, types.int64)
        run.compile(signature)
        compiled = run.overloads[signature]
        return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def stepper(state: Any) -> tuple[Iterator[int], Any]:
    """A generator of statuses over this state, and the array that it is asked by.

    Runs return SLICED after SLICE_EVENTS events, so that Python sees signals; the caller goes on where it was.
    """
    ask = np.zeros(4, np.int64)
    ask[BUDGET] = SLICE_EVENTS
    ask[ADDRESS] = address(state)
    return steps(state, ask), ask
