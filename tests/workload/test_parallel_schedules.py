"""Schedules: the bubble of each is its closed form, played by a loop that knows nothing of the lowering."""

from __future__ import annotations

import numpy as np
import pytest
from support.programs import longest_path, lowered
from support.specs import tiny_job as spec

from fabrictwin.workload.step.pipeline_schedule import Pass, Task, order_of

EACH = (3, 2, 1)  # times of F, B, W of one chunk


def makespan(orders: list[list[Task]], chunks: int, times: tuple[int, int, int], *, split: bool) -> int:
    """The time of the last task, where a task starts as soon as its stage and what it waits for are done."""
    pp = len(orders)
    last = pp * chunks - 1
    cost = times if split else (times[0], times[1] + times[2], 0)
    end: dict[tuple[Pass, int, int], int] = {}
    clock, at = [0] * pp, [0] * pp
    while any(at[s] < len(orders[s]) for s in range(pp)):
        moved = False
        for s, order in enumerate(orders):
            while at[s] < len(order):
                task = order[at[s]]
                v = task.chunk * pp + s
                needs = {
                    Pass.FORWARD: (Pass.FORWARD, task.micro_batch, v - 1) if v > 0 else None,
                    Pass.BACKWARD: (Pass.BACKWARD, task.micro_batch, v + 1)
                    if v < last
                    else (Pass.FORWARD, task.micro_batch, v),
                    Pass.WEIGHT: (Pass.BACKWARD, task.micro_batch, v),
                }[task.kind]
                if needs is not None and needs not in end:
                    break
                clock[s] = max(clock[s], 0 if needs is None else end[needs]) + cost[task.kind]
                end[task.kind, task.micro_batch, v] = clock[s]
                at[s] += 1
                moved = True
        assert moved, "the schedule waits for itself"
    return max(clock)


def orders(schedule: str, pp: int, chunks: int, m: int) -> list[list[Task]]:
    return [order_of(schedule, s, pp, chunks, m) for s in range(pp)]


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (8, 8), (8, 24), (5, 7)])
def test_gpipe_and_1f1b_have_the_same_bubble(pp, m):
    whole = sum(EACH)
    for schedule in ("gpipe", "1f1b"):
        assert makespan(orders(schedule, pp, 1, m), 1, EACH, split=False) == (m + pp - 1) * whole


@pytest.mark.parametrize(("pp", "chunks", "m"), [(2, 2, 4), (4, 2, 8), (4, 5, 16), (8, 8, 72), (8, 3, 8)])
def test_the_interleaved_bubble_is_smaller_by_the_number_of_chunks(pp, chunks, m):
    whole = sum(EACH)  # of one chunk, so that a stage's pass takes chunks times as long
    took = makespan(orders("1f1b", pp, chunks, m), chunks, EACH, split=False)
    assert took == m * chunks * whole + (pp - 1) * whole


@pytest.mark.parametrize(("pp", "m"), [(2, 2), (4, 4), (4, 8), (8, 24)])
def test_zero_bubble_h1_saves_two_thirds(pp, m):
    """Qi et al. 2023, table 2: (p - 1) (F + B - W), where the three take the same."""
    assert makespan(orders("zero-bubble", pp, 1, m), 1, (1, 1, 1), split=True) == 3 * m + (pp - 1)
    assert makespan(orders("1f1b", pp, 1, m), 1, (1, 1, 1), split=False) == 3 * m + 3 * (pp - 1)


@pytest.mark.parametrize(("pp", "m"), [(2, 5), (4, 9), (8, 16), (8, 3)])
def test_zero_bubble_h1_keeps_no_more_than_1f1b_on_the_first_stage(pp, m):
    """A micro-batch is kept from its forward to its weight gradient: at most p on every stage."""
    for stage in range(pp):
        kept = most = 0
        for task in order_of("zero-bubble", stage, pp, 1, m):
            kept += {Pass.FORWARD: 1, Pass.BACKWARD: 0, Pass.WEIGHT: -1}[task.kind]
            most = max(most, kept)
        assert most == min(pp, m)


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("1f1b", 2), ("zero-bubble", 1)])
def test_every_pass_is_there_once(schedule, chunks):
    for stage in range(4):
        order = order_of(schedule, stage, 4, chunks, 8)
        assert len(set(order)) == len(order)
        kinds = 3 if schedule == "zero-bubble" else 2
        assert len(order) == kinds * 8 * chunks


@pytest.mark.parametrize(
    "parallel",
    [
        {"tp": 1, "pp": 4, "schedule": "gpipe"},
        {"tp": 1, "pp": 4, "schedule": "1f1b"},
        {"tp": 1, "pp": 4, "schedule": "zero-bubble"},
        {"tp": 1, "pp": 4, "vp": 2},
    ],
)
def test_the_lowered_program_has_the_bubble_of_its_schedule(parallel):
    """Every pass of the program set to one duration, communication free: the step is the loop's above."""
    m, chunks = 8, parallel.get("vp", 1)
    _, program = lowered(spec(2, parallel=parallel, micro_batches=m, host={"launch": "0 us"}))
    ops = program.operations
    labels = [label.name for label in program.labels]
    split = parallel.get("schedule") == "zero-bubble"
    duration = np.zeros(len(ops), np.int64)
    compute = np.flatnonzero((ops.communication == -1) & (ops.micro_batch >= 0))
    # one operation of a pass carries its time: without tensor parallelism a pass is one operation
    for name, kinds in (("forward", (EACH[0],)), ("backward", EACH[1:] if split else (sum(EACH[1:]),))):
        mine = compute[ops.label[compute] == labels.index(name)]
        assert len(mine) == len(kinds) * 4 * chunks * m
        for i, cost in enumerate(kinds):
            # of a stage's blocks, input gradients were laid down before weight gradients
            by_stage = mine.reshape(4, len(kinds), chunks * m) if len(kinds) > 1 else mine.reshape(4, 1, -1)
            duration[by_stage[:, i]] = cost
    ops.duration_ps[:] = duration
    expected = makespan(orders(parallel.get("schedule", "1f1b"), 4, chunks, m), chunks, EACH, split=split)
    assert longest_path(program) == expected
