"""Programs built from single operations and from blocks laid down many times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.base.errors import InvariantError
from fabrictwin.program import collectives
from fabrictwin.program.builder import Block, ProgramBuilder, inlet
from fabrictwin.program.program import NONE, OpKind, Program


def predecessors(program: Program) -> list[set[int]]:
    ops = program.operations
    starts = ops.after_start
    return [set(ops.after[starts[i] : starts[i + 1]].tolist()) for i in range(len(ops))]


def test_single_operations_keep_their_columns():
    builder = ProgramBuilder("two ranks", 2)
    a, b = builder.actor("rank 0", [0]), builder.actor("rank 1", [1])
    compute, send = builder.label("forward", "compute"), builder.label("send", "pp")
    assert builder.label("forward", "compute") == compute
    message = builder.communication(collectives.send([[0, 1]], 100), [b, a])
    first = builder.compute(a, 70, compute, micro_batch=3)
    then = builder.communicate(message, send, after=[first, NONE])
    builder.compute(b, 50, compute, after=[then, first, then])
    program = builder.build()
    ops = program.operations
    assert ops.kind.tolist() == [OpKind.COMPUTE, OpKind.COMMUNICATE, OpKind.COMPUTE]
    assert ops.actor.tolist() == [a, a, b]
    assert ops.duration_ps.tolist() == [70, 0, 50]
    assert ops.communication.tolist() == [NONE, message, NONE]
    assert ops.micro_batch.tolist() == [3, NONE, NONE]
    assert [program.labels[i].category for i in ops.label] == ["compute", "pp", "compute"]
    assert predecessors(program) == [set(), {0}, {0, 1}]
    assert program.participants.tolist() == [a, b]


@given(
    edges=st.lists(st.lists(st.integers(0, 8), max_size=4), min_size=1, max_size=6),
    copies=st.integers(1, 5),
    data=st.data(),
)
def test_copies_of_a_block_are_the_block_written_out(edges: list[list[int]], copies: int, data: st.DataObject):
    """Predecessors 0 .. 5 are earlier operations of the block, 6 .. 8 its inlets."""
    block = Block()
    for i, before in enumerate(edges):
        block.compute(i % 2, 10 + i, 0, [inlet(p - 6) if p >= 6 else p for p in before if p >= 6 or p < i])
    size = len(block)
    builder = ProgramBuilder("copies", 2)
    builder.actor("a", [0])
    builder.actor("b", [1])
    builder.label("work", "compute")
    first = builder.reserve(copies * size)
    order = data.draw(st.permutations(range(copies)))
    starts = first + np.array(order) * size
    stands_for = st.integers(NONE, copies * size - 1)
    inlets = np.array(data.draw(st.lists(st.tuples(*[stands_for] * 3), min_size=copies, max_size=copies)))
    builder.place(block, starts, micro_batch=np.arange(copies), inlets=inlets)
    program = builder.build()
    found = predecessors(program)
    for copy, start in enumerate(starts):
        for i, before in enumerate(edges):
            here = start + i
            expected = {start + p for p in before if p < i and p < 6} | {
                int(inlets[copy, p - 6]) for p in before if p >= 6
            }
            assert found[here] == expected - {NONE}
            assert program.operations.duration_ps[here] == 10 + i
            assert program.operations.micro_batch[here] == copy


def test_half_a_million_operations_keep_their_order():
    """A chain of blocks: each copy waits for the end of the one before."""
    builder = ProgramBuilder("long", 1)
    actor, label = builder.actor("rank 0", [0]), builder.label("work", "compute")
    block = Block()
    last = inlet(0)
    for _ in range(10):
        last = block.compute(actor, 1, label, [last])
    copies = 50_000
    starts = builder.reserve(copies * 10) + np.arange(copies) * 10
    builder.place(block, starts, micro_batch=np.arange(copies), inlets=np.append(NONE, starts[:-1] + 9)[:, None])
    ops = builder.build().operations
    assert len(ops) == 500_000
    assert (ops.after == np.arange(499_999)).all()
    assert ops.after_start[1] == 0
    assert (np.diff(ops.after_start)[1:] == 1).all()


def test_what_cannot_be_a_program_is_an_invariant_broken():
    builder = ProgramBuilder("broken", 1)
    actor, label = builder.actor("rank 0", [0]), builder.label("work", "compute")
    builder.compute(actor, 1, label, after=[7])
    with pytest.raises(InvariantError, match="waits for one that does not exist"):
        builder.build()
    builder = ProgramBuilder("broken", 1)
    builder.actor("rank 0", [0])
    builder.compute(actor, 1, builder.label("work", "compute"))
    builder.reserve(2)
    with pytest.raises(InvariantError, match="3 operations were reserved and 1 written"):
        builder.build()
    block = Block()
    block.compute(0, 1, 0, [inlet(0)])
    with pytest.raises(InvariantError, match="no inlets were given"):
        builder.place(block, [0], micro_batch=[NONE])
