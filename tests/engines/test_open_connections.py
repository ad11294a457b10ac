"""Connections that stay open, and the sums that paths are brought into."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import boxes
from support.nccl_machines import chosen, communicator, twin_of

from fabrictwin.base.errors import InvariantError
from fabrictwin.engines.analytic import closed_forms
from fabrictwin.engines.analytic.closed_forms import ClosedForms
from fabrictwin.engines.channels import edge_paths
from fabrictwin.engines.channels.channel_resources import Bound, bind, bind_in_parts
from fabrictwin.engines.channels.column_cache import LastColumns
from fabrictwin.engines.channels.edge_paths import OpenConnections
from fabrictwin.engines.flow.flow_engine import FlowEngine
from fabrictwin.fabric.fabric import NONE
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.kernel.flow.sums import (
    add_up,
    carried,
    count,
    edge_rates,
    loaded_rates,
    place,
    places_by,
    take_rows,
)
from fabrictwin.nccl.lowering.lower import Lowering
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.topology.graph_types import Algorithm
from fabrictwin.program import collectives, patterns
from fabrictwin.program.program import Communication
from fabrictwin.twin.twin import Twin


def connections(twin: Twin, *, keep: bool = False) -> OpenConnections:
    return OpenConnections(twin.fabric, PathFinder(twin.fabric, twin.routes), keep=keep)


def ring(size: int) -> Communication:
    return collectives.all_reduce(np.arange(16)[None], size)


def shuffled(size: int) -> Communication:
    return collectives.all_reduce(np.array([[0, 11, 6, 1, 12, 7, 2, 13]]), size)


def ports(bound: Bound) -> list[int]:
    return bound.use_resource.tolist()


def test_sizes_of_one_collective_have_one_set_of_connections():
    """On Ethernet paths follow from queue pair numbers, of which each new connection takes the next."""
    twin = boxes(8, "ethernet")
    kept = connections(twin, keep=True)
    bounds = [bind([ring(size)], twin.fabric.gpu_node, kept) for size in (1 << 10, 1 << 20, 1 << 30)]
    assert ports(bounds[0]) == ports(bounds[1]) == ports(bounds[2])
    loose = connections(twin)
    again = [bind([ring(1 << 20)], twin.fabric.gpu_node, loose) for _ in range(8)]
    assert len({tuple(ports(bound)) for bound in again}) > 1


@pytest.mark.parametrize("keep", [False, True])
def test_a_job_that_sends_nothing_opens_none(keep):
    twin = boxes(1, "ethernet")
    bound = bind([], twin.fabric.gpu_node, connections(twin, keep=keep))
    assert (ports(bound), len(bound.use_start)) == ([], 1)


def test_alike_ones_among_others_share_their_connections():
    twin = boxes(8, "ethernet")
    several = [ring(1 << 20), shuffled(1 << 10), ring(1 << 30), shuffled(1 << 25), ring(8)]
    bound = bind(several, twin.fabric.gpu_node, connections(twin))
    used = [ports(bound)[bound.use_start[c] : bound.use_start[c + 1]] for c in range(len(several))]
    assert used[0] == used[2] == used[4]
    assert used[1] == used[3] != used[0]


@pytest.mark.parametrize("keep", [False, True])
def test_alike_ones_among_others_are_bound_as_if_each_came_alone(keep: bool):
    twin = boxes(8)
    several = [ring(1 << 20), shuffled(1 << 10), ring(1 << 30), shuffled(1 << 25), ring(8)]
    ((_, together, found),) = bind_in_parts(several, twin.fabric.gpu_node, connections(twin, keep=keep))
    one_by_one = connections(twin, keep=True)
    alone = [part[1:] for each in several for part in bind_in_parts([each], twin.fabric.gpu_node, one_by_one)]
    for name in ("size_bytes", "fill_ps", "serial_ps", "path_ps", "limit", "use_resource", "use_coefficient"):
        expected = np.concatenate([getattr(bound, name) for bound, _ in alone])
        np.testing.assert_array_equal(getattr(together, name), expected, err_msg=name)
    first = 0
    for communication, (_, its) in zip(several, alone, strict=True):
        edges = len(patterns.edges(communication.channels))
        mine = (found.edge >= first) & (found.edge < first + edges)
        np.testing.assert_array_equal(found.port[mine], its.port)
        np.testing.assert_array_equal(found.edge[mine], its.edge + first)
        first += edges


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_what_is_bound_in_parts_is_what_is_bound_at_once(technology: str, monkeypatch: pytest.MonkeyPatch):
    twin = boxes(8, technology)
    several = [ring(1 << 20), shuffled(1 << 10), ring(1 << 30), shuffled(1 << 25), ring(8)]
    whole = bind(several, twin.fabric.gpu_node, connections(twin))
    monkeypatch.setattr(edge_paths, "_EDGES_AT_ONCE", 40)
    parts = list(bind_in_parts(several, twin.fabric.gpu_node, connections(twin)))
    assert [which for which, _, _ in parts] == [slice(0, 3), slice(3, 5)]  # 16 and 8 edges each
    joined = Bound.joined([bound for _, bound, _ in parts])
    for field in fields(Bound):
        if field.name not in ("counts", "critical"):
            ours, expected = getattr(joined, field.name), getattr(whole, field.name)
            np.testing.assert_array_equal(ours, expected, err_msg=field.name)
    flow, executions = np.arange(len(several)), np.arange(1, 1 + len(several))
    carried = np.zeros((2, twin.fabric.ports), np.int64)
    for bound, row in zip((joined, whole), carried, strict=True):
        bound.add_carried(flow, executions, np.full(len(several), 0.25), row)
    assert carried[0].any()
    np.testing.assert_array_equal(*carried)
    size, edges = int(whole.counts[0].size.sum()), whole.counts[0]
    once = np.zeros(twin.fabric.ports, np.int64)
    whole.add_carried(flow, np.ones(len(several), np.int64), np.zeros(len(several)), once)
    assert once.sum() == size
    np.testing.assert_array_equal(once, np.bincount(edges.port, edges.size, twin.fabric.ports))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("environment", [{}, {"NCCL_NET": "Socket"}])
def test_channels_that_are_bound_in_parts_use_what_they_use_at_once(
    keep: bool, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    twin = twin_of("dgx-h100", 2, "ethernet")
    tree = chosen(Algorithm.TREE, channels=8)
    one = Lowering(communicator(twin=twin, **environment))(Task("all_reduce", 1 << 26), tree)
    whole = bind([one], twin.fabric.gpu_node, connections(twin, keep=keep))
    monkeypatch.setattr(edge_paths, "_EDGES_AT_ONCE", 3 * len(patterns.edges(one.channels)) // len(one.channels))
    parts = bind([one], twin.fabric.gpu_node, connections(twin, keep=keep))
    assert len(whole.counts) == 1 < len(parts.counts) < len(one.channels)
    for name in ("size_bytes", "limit", "use_start", "use_resource", "use_coefficient"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name), err_msg=name)
    for name in ("port", "size"):
        ours = np.concatenate([getattr(counts, name) for counts in parts.counts])
        np.testing.assert_array_equal(ours, getattr(whole.counts[0], name), err_msg=name)


def test_what_is_connected_otherwise_is_found_anew():
    twin = twin_of("dgx-a100", 2, "ethernet")
    lowering = Lowering(communicator(twin=twin))
    kept = connections(twin, keep=True)
    task = Task("send_recv", 1 << 20)
    plain = lowering(task)
    used = plain.transport.connections
    assert used is not None
    twice = replace(used, paths=used.paths * 2)
    doubled = replace(plain, transport=replace(plain.transport, connections=twice))
    ((_, _, single),) = bind_in_parts([plain], twin.fabric.gpu_node, kept)
    ((_, _, double),) = bind_in_parts([doubled], twin.fabric.gpu_node, kept)
    far = np.flatnonzero(single.source_nic != NONE)
    network = np.isin(single.edge, far) & (single.share == 0.5)
    assert not network.any()
    assert (np.isin(double.edge, far) & (double.share == 0.5)).any()


@pytest.mark.parametrize("size", [8, 4096, 1 << 20, 1 << 26])
def test_sizes_take_what_each_takes_by_itself(size: int):
    machines = communicator("dgx-h100", 2)
    sends = [(Task("send_recv", each), None) for each in (8, 4096, 1 << 20, 1 << 26)]
    together = measure(machines, sends)
    (alone,) = measure(machines, [(Task("send_recv", size), None)])
    assert together[[task.size_bytes for task, _ in sends].index(size)] == alone


def test_an_engine_that_does_not_count_says_so():
    twin = boxes(2)
    engine = FlowEngine(twin.fabric, twin.routes, counted=False)
    with pytest.raises(InvariantError, match="does not count"):
        engine.counters()


entries = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(-9, 9)), max_size=40)


@given(entries)
def test_sums_by_row_and_column(drawn: list[tuple[int, int, int]]):
    row, column, value = (np.array([each[i] for each in drawn], np.int64) for i in range(3))
    start, order, first = np.zeros(7, np.int64), np.empty(len(row), np.int32), np.empty(len(row) + 1, np.int32)
    made = places_by(row, column.astype(np.int32), 8, start, order, first)
    to_column, to_value = column[order[first[:made]]], np.empty(made, np.int64)
    add_up(order, first[: made + 1], value, to_value)
    expected = np.zeros((6, 8), np.int64)
    np.add.at(expected, (row, column), value)
    for r in range(6):
        mine = slice(start[r], start[r + 1])
        assert to_column[mine].tolist() == sorted(set(column[row == r].tolist()))
        assert to_value[mine].tolist() == expected[r, to_column[mine]].tolist()


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), max_size=4), min_size=1, max_size=8),
    st.data(),
)
def test_rows_are_taken_with_all_that_they_use(rows: list[list[tuple[int, float]]], data: st.DataObject):
    taken = data.draw(st.permutations(range(len(rows))))
    uses = [use for row in rows for use in row]
    start = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    columns, values = np.empty(len(uses), np.int32), np.empty(len(uses))
    given_ = np.array([use[0] for use in uses], np.int32), np.array([use[1] for use in uses], np.float64)
    take_rows(start, np.array(taken, np.int64), *given_, columns, values)
    assert list(zip(columns.tolist(), values.tolist(), strict=True)) == [use for r in taken for use in rows[r]]


legs = st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.floats(0.01, 1))), max_size=4)


@given(legs)
def test_legs_are_merged_by_edge_and_kept_in_their_order(drawn: list[list[tuple[int, int, float]]]):
    parts = [
        [np.array([use[i] for use in leg], kind) for i, kind in enumerate((np.int64, np.int32, float))]
        for leg in drawn
    ]
    following = np.zeros(6, np.int64)
    for edge, _, _ in parts:
        count(edge, following[1:])
    np.cumsum(following, out=following)
    uses = int(following[-1])
    merged = np.empty(uses, np.int64), np.empty(uses, np.int32), np.empty(uses), np.empty(uses)
    for edge, port, share in parts:
        place(edge, port, share, share / 2, following, *merged)
    expected = sorted(((*use, use[2] / 2) for leg in drawn for use in leg), key=lambda use: use[0])
    assert list(zip(*(column.tolist() for column in merged), strict=True)) == expected


@given(legs.map(lambda drawn: sorted(use for leg in drawn for use in leg)))
def test_rates_and_bytes_of_edges(uses: list[tuple[int, int, float]]):
    edge, port, share = (
        np.array([use[i] for use in uses], kind) for i, kind in enumerate((np.int64, np.int32, float))
    )
    rate, slowest = np.arange(1.0, 11.0), np.full(5, np.inf)
    edge_rates(edge, port, share, rate, 8.0, slowest)
    expected = [min((rate[p] / (8 * s) for e, p, s in uses if e == own), default=np.inf) for own in range(5)]
    assert slowest.tolist() == expected
    before, size = share * 0.75, np.array([0.0, 1.0, 10.0, 1e6, 1e12])
    carries = np.empty(len(edge), np.int64)
    carried(edge, before, share, size, carries)
    ends, begins = (np.rint(part * size[edge]).astype(np.int64) for part in (before + share, before))
    assert carries.tolist() == (ends - begins).tolist()


def test_what_was_made_of_columns_is_kept_while_they_stay_the_same():
    last, made = LastColumns(keep=True), []
    column = np.arange(3)

    def make(*columns):
        return last.of("name", columns, lambda: made.append(len(columns)) or len(made))

    assert [make(column), make(column), make(column.copy()), make(column + 1), make(column)] == [1, 1, 1, 2, 3]
    assert [make(column, column), make(column[:2])] == [4, 5]
    never = LastColumns(keep=False)
    assert never.of("name", (column,), lambda: 1) == 1
    assert never.of("name", (column,), lambda: 2) == 2


def test_edges_at_work_together_share_their_links():
    """Edges 0 and 1 go up on one link, edge 2 goes down on it; the next channel has it to itself."""
    edge, port = np.array([0, 1, 1, 2, 3], np.int64), np.array([4, 4, 5, 4, 4], np.int32)
    together, share = np.array([1, 1, 0, 2], np.int64), np.array([1.0, 1.0, 1.0, 1.0, 0.5])
    rate, load, slowest = np.full(6, 80.0), np.zeros((2, 6)), np.full(4, np.inf)
    loaded_rates(edge, port, share, together, rate, 8, load, slowest)
    assert slowest.tolist() == [5.0, 5.0, 10.0, 20.0]
    assert not load.any()


@pytest.mark.parametrize("kept", [0, 1 << 17])
def test_a_communication_takes_as_long_whatever_was_asked_before(kept: int, monkeypatch: pytest.MonkeyPatch):
    """Closed forms that keep paths give what ones give that keep none."""
    twin = boxes(8)
    asked = [ring(1 << 20), shuffled(1 << 25), ring(1 << 20), ring(1 << 30), shuffled(1 << 10), shuffled(1 << 25)]
    fresh = [ClosedForms(twin.fabric).durations([each], twin.fabric.gpu_node)[0] for each in asked]
    monkeypatch.setattr(closed_forms, "_EDGES_KEPT", kept)
    forms = ClosedForms(twin.fabric)
    assert [forms.durations([each], twin.fabric.gpu_node)[0] for each in asked] == fresh
    assert (forms._kept.edges > 0) == (kept > 0)
    assert len(forms._kept._known) == (2 if kept else 0)
    monkeypatch.setattr(closed_forms, "_EDGES_KEPT", forms._kept.edges - 1 if kept else 0)
    assert forms.durations(asked[:2], twin.fabric.gpu_node).tolist() == fresh[:2]
