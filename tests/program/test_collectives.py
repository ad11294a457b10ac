"""Collectives: real data against numpy, single sends against edges, edges and fill against closed forms."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import played

from fabrictwin.base.errors import ConfigError
from fabrictwin.program import collectives, patterns
from fabrictwin.program import data_execution as execute_module
from fabrictwin.program.binary_trees import double_binary_tree
from fabrictwin.program.collectives import Step
from fabrictwin.program.data_execution import execute
from fabrictwin.program.program import NONE, Communication
from fabrictwin.program.sends import Sends, sends_of

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 64]
DTYPES = [np.uint8, np.int32, np.float16, np.float32, np.int64]


def values(ranks: int, elements: int, dtype: type, seed: int = 0) -> np.ndarray:
    """Small whole numbers, so that sums are exact in any order (uint8 wraps, which is exact as well)."""
    return np.random.default_rng(seed).integers(0, 9, (ranks, elements)).astype(dtype)


def shard(elements: int, n: int, index: int) -> slice:
    """The oracle's own shards: as np.array_split cuts."""
    parts = np.array_split(np.arange(elements), n)
    return slice(parts[index][0], parts[index][-1] + 1) if len(parts[index]) else slice(0, 0)


def hosts_of(n: int, per_host: int) -> np.ndarray:
    return np.arange(n) // per_host


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_all_reduce_sums(n: int, algorithm: str) -> None:
    dtype = DTYPES[n % len(DTYPES)]
    elements = 5 * n + 3
    data = values(n, elements, dtype)
    item = data.itemsize
    communication = collectives.all_reduce(
        np.arange(n),
        elements * item,
        algorithm=algorithm,
        channels=2,
        step=Step(4 * item),
        host_of_rank=hosts_of(n, 4) if n % 2 else None,
        element_bytes=item,
    )
    result = execute([communication], data, seed=n)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.tile(data.sum(axis=0, dtype=dtype), (n, 1)))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_all_gather_and_reduce_scatter(n: int, channels: int) -> None:
    elements = 4 * n + n // 2
    data = values(n, elements, np.int32)
    options = {"channels": channels, "host_of_rank": hosts_of(n, 3), "element_bytes": 4}
    gather = collectives.all_gather(np.arange(n), elements * 4, **options)
    full = np.concatenate([data[rank, shard(elements, n, rank)] for rank in range(n)])
    np.testing.assert_array_equal(execute([gather], data, seed=1), np.tile(full, (n, 1)))

    scatter = collectives.reduce_scatter(np.arange(n), elements * 4, **options)
    result = execute([scatter], data, seed=2)
    for rank in range(n):
        mine = shard(elements, n, rank)
        np.testing.assert_array_equal(result[rank, mine], data[:, mine].sum(axis=0))


@pytest.mark.parametrize("n", SIZES)
def test_broadcast(n: int) -> None:
    data = values(n, 37, np.float32)
    root = n // 2
    communication = collectives.broadcast(
        np.arange(n), 37 * 4, root=root, channels=3, step=Step(20), host_of_rank=hosts_of(n, 4), element_bytes=4
    )
    np.testing.assert_array_equal(execute([communication], data, seed=3), np.tile(data[root], (n, 1)))


@pytest.mark.parametrize("n", SIZES)
def test_all_to_all(n: int) -> None:
    block = 3
    data = values(n, n * block, np.int64)
    steps = collectives.all_to_all(np.arange(n), block * 8, channels=2, element_bytes=8)
    assert len(steps) == n - 1
    expected = data.reshape(n, n, block).transpose(1, 0, 2).reshape(n, n * block)
    np.testing.assert_array_equal(execute(steps, data, seed=4), expected)


@pytest.mark.parametrize(("n", "per_host"), [(1, 1), (4, 4), (6, 1), (8, 4), (24, 8), (12, 2), (64, 8)])
def test_hierarchical_all_reduce(n: int, per_host: int) -> None:
    elements = 3 * n + 5
    data = values(n, elements, np.int32)
    phases = collectives.hierarchical_all_reduce(
        np.arange(n), elements * 4, host_of_rank=hosts_of(n, per_host), channels=2, element_bytes=4
    )
    assert [phase.kind for phase in phases] == (
        ["reduce_scatter"] * (per_host > 1)
        + ["all_reduce"] * (n // per_host > 1)
        + ["all_gather"] * (per_host > 1)
    )
    np.testing.assert_array_equal(execute(phases, data, seed=5), np.tile(data.sum(axis=0), (n, 1)))


def test_groups_act_side_by_side() -> None:
    """Groups with strides, as tensor- and data-parallel groups are, each on its own."""
    groups = np.arange(24).reshape(6, 4).T  # 4 groups of 6
    data = values(24, 31, np.int32)
    result = execute([collectives.all_reduce(groups, 124, channels=2, element_bytes=4)], data, seed=6)
    for group in groups:
        np.testing.assert_array_equal(result[group], np.tile(data[group].sum(axis=0), (6, 1)))
    pairs = np.array([[0, 12], [1, 13], [13, 14]])
    result = execute([collectives.send(pairs[:2], 124, element_bytes=4)], data, seed=6)
    np.testing.assert_array_equal(result[[12, 13]], data[[0, 1]])


def lowered(kind: str, n: int, elements: int, channels: int, chunk: int, per_host: int) -> list[Communication]:
    hosts = hosts_of(n, per_host)
    ranks = np.arange(n)
    match kind:
        case "ring" | "tree":
            made = collectives.all_reduce(
                ranks,
                elements * 4,
                algorithm=kind,
                channels=2 * channels,
                step=Step(chunk),
                host_of_rank=hosts,
                element_bytes=4,
            )
            return [made]
        case "all_gather":
            return [
                collectives.all_gather(ranks, elements * 4, channels=channels, host_of_rank=hosts, element_bytes=4)
            ]
        case "reduce_scatter":
            return [
                collectives.reduce_scatter(
                    ranks, elements * 4, channels=channels, host_of_rank=hosts, element_bytes=4
                )
            ]
        case "broadcast":
            return [
                collectives.broadcast(
                    ranks,
                    elements * 4,
                    root=elements % n,
                    channels=channels,
                    step=Step(chunk),
                    host_of_rank=hosts,
                    element_bytes=4,
                )
            ]
        case "all_to_all":
            return list(collectives.all_to_all(ranks, elements * 4, channels=channels, element_bytes=4))
    raise AssertionError(kind)


KINDS = ["ring", "tree", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]


@settings(max_examples=150)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 13),
    elements=st.integers(1, 90),
    channels=st.integers(1, 4),
    chunk=st.integers(1, 64),
    per_host=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_sends_sum_to_edges_and_any_order_gives_the_same(
    kind: str, n: int, elements: int, channels: int, chunk: int, per_host: int, seed: int
) -> None:
    communications = lowered(kind, n, elements, channels, chunk, per_host)
    for communication in communications:
        table = communication.channels
        edges = patterns.edges(table)
        assert (edges.source != edges.target).all()
        for c in range(len(table)):
            sends = sends_of(table, c)
            carried: Counter[tuple[int, int]] = Counter()
            for source, target, size in zip(sends.source, sends.target, sends.length_bytes, strict=True):
                carried[int(source), int(target)] += int(size)
            mine = edges.channel == c
            expected = {
                (int(s), int(t)): int(b)
                for s, t, b in zip(edges.source[mine], edges.target[mine], edges.size_bytes[mine], strict=True)
                if b
            }
            assert carried == expected
            waits = np.repeat(np.arange(len(sends)), np.diff(sends.after_start))
            assert (sends.after < waits).all()
            assert (sends.step[sends.after] < sends.step[waits]).all()
            assert (sends.length_bytes % 4 == 0).all()
    blocks = n if kind == "all_to_all" else 1
    data = values(n, elements * blocks, np.int32, seed)
    np.testing.assert_array_equal(execute(communications, data, seed=seed), execute(communications, data))


def test_the_executor_notices_a_missing_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    data = values(6, 30, np.int32)
    communication = collectives.all_reduce(np.arange(6), 120, element_bytes=4)
    expected = np.tile(data.sum(axis=0), (6, 1))
    honest = sends_of

    def forgetful(channels: object, c: int) -> Sends:
        sends = honest(channels, c)
        start = np.minimum(sends.after_start, len(sends.after) - 1)  # the last send waits for nothing
        return dataclasses.replace(sends, after_start=start, after=sends.after[:-1])

    monkeypatch.setattr(execute_module, "sends_of", forgetful)
    assert any((execute([communication], data, seed=seed) != expected).any() for seed in range(40))


# --- closed forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 8, 24, 1000])
def test_ring_bytes_per_edge_are_the_closed_form(n: int) -> None:
    size = n * 12_345
    ring = patterns.edges(collectives.all_reduce(np.arange(n), size).channels)
    assert len(ring) == n
    assert (ring.size_bytes * n == 2 * (n - 1) * size).all()
    for lower in (collectives.all_gather, collectives.reduce_scatter):
        edges = patterns.edges(lower(np.arange(n), size).channels)
        assert (edges.size_bytes * n == (n - 1) * size).all()


def test_an_indivisible_ring_moves_the_same_bytes_in_total() -> None:
    n, size = 7, 1000
    edges = patterns.edges(collectives.all_reduce(np.arange(n), size).channels)
    assert edges.size_bytes.sum() == 2 * (n - 1) * size
    assert edges.size_bytes.max() - edges.size_bytes.min() <= 2


def alike(value: int) -> defaultdict[tuple[int, int], int]:
    """The same figure on every edge."""
    return defaultdict(lambda: value)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 21])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("latency", [0, 7])
def test_fill_is_what_playing_the_sends_takes(kind: str, n: int, latency: int) -> None:
    """Uncontended: hops × latency + edge bytes + fill bytes, where shards divide."""
    for per_host in (1, n):
        for communication in lowered(kind, n, 6 * n, 1, 32, per_host):
            hops, fill = patterns.fill(communication.channels)
            edges = patterns.edges(communication.channels)
            for c in range(len(communication.channels)):
                largest = int(edges.size_bytes[edges.channel == c].max(initial=0))
                assert played(communication, c, alike(latency), alike(1)) == int(
                    hops[c]
                ) * latency + largest + int(fill[c])


def test_single_message_is_one_hop() -> None:
    communication = collectives.send([[3, 5]], 1 << 20)
    hops, fill = patterns.fill(communication.channels)
    assert (hops.tolist(), fill.tolist()) == ([1], [0])
    assert played(communication, 0, alike(11), alike(1)) == (1 << 20) + 11


# --- orders of ranks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 66))
def test_double_binary_tree(n: int) -> None:
    first, second = (tree.up for tree in double_binary_tree(n))
    inside = np.zeros(n, int)
    for parent in (first, second):
        assert (parent == NONE).sum() == 1
        children = np.bincount(parent[parent != NONE], minlength=n)
        assert children.max(initial=0) <= 2
        inside += children > 0
        depth = patterns.path_sum(parent, np.ones(n, np.int64))
        assert depth.max() <= int(np.ceil(np.log2(n))) if n > 1 else depth.max() == 0
    # inside one tree and a leaf of the other; with n odd, one rank is inside both
    assert (inside == 2).sum() <= (n % 2 if n > 1 else 0)
    assert (inside <= 2).all()


def test_a_tree_over_hosts_is_a_chain_inside_them() -> None:
    channels = collectives.all_reduce(
        np.arange(32), 1 << 20, algorithm="tree", channels=4, host_of_rank=hosts_of(32, 8)
    ).channels
    edges = patterns.edges(channels)
    between = edges.source // 8 != edges.target // 8
    for c in range(4):
        mine = edges.channel == c
        assert (mine & between).sum() == 2 * 3
        # one GPU of each host talks to the network: the same for both trees of a pair, another for the next pair
        assert set((edges.source[mine & between] % 8).tolist()) == {c // 2}


@pytest.mark.parametrize("n_hosts", [2, 3, 4, 5])
def test_rings_leave_each_host_by_another_gpu_on_each_channel(n_hosts: int) -> None:
    per_host = 8
    n = n_hosts * per_host
    edges = patterns.edges(
        collectives.all_reduce(np.arange(n), 1 << 20, channels=8, host_of_rank=hosts_of(n, per_host)).channels
    )
    between = edges.source // per_host != edges.target // per_host
    assert between.sum() == 8 * n_hosts
    for host in range(n_hosts):
        leaving = between & (edges.source // per_host == host)
        assert len(set(edges.source[leaving].tolist())) == 8
        entering = between & (edges.target // per_host == host)
        assert len(set(edges.target[entering].tolist())) == 8
    # along one rail, but for the last hop home where the number of hosts is odd
    across = (edges.source % per_host != edges.target % per_host) & between
    assert across.sum() == (8 if n_hosts % 2 else 0)


def test_ranks_are_ordered_host_by_host_wherever_they_are() -> None:
    hosts = np.array([0, 1, 0, 1, 0, 1])
    edges = patterns.edges(collectives.all_reduce(np.arange(6), 600, host_of_rank=hosts).channels)
    assert (hosts[edges.source] != hosts[edges.target]).sum() == 2


def test_channels_split_a_payload_exactly() -> None:
    table = collectives.all_reduce(np.arange(8), 1003, channels=5).channels
    assert table.payload_bytes.tolist() == [201, 201, 201, 200, 200]
    assert (table.offset_bytes[1:] == np.cumsum(table.payload_bytes)[:-1]).all()
    # a channel with nothing to carry does not exist
    assert len(collectives.all_reduce(np.arange(8), 3, channels=5).channels) == 3


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: collectives.all_reduce([0, 1], 0), "moves something"),
        (lambda: collectives.all_reduce([0, 1], 10, element_bytes=4), "no multiple"),
        (lambda: collectives.all_reduce([0, 1], 8, algorithm="tree", channels=3), "even number"),
        (lambda: collectives.all_reduce([0, 1], 8, algorithm="star"), "'ring' or 'tree'"),
        (lambda: collectives.all_reduce([0, 1, 0], 8), "twice"),
        (lambda: collectives.all_reduce([0, 1], 8, channels=0), "at least 1"),
        (lambda: collectives.broadcast([0, 1], 8, root=2), "position in a group of 2"),
        (lambda: collectives.send([[0, 1, 2]], 8), "pairs"),
        (lambda: collectives.hierarchical_all_reduce([0, 1, 2], 8, host_of_rank=[0, 0, 1]), "same number"),
    ],
)
def test_what_cannot_be_lowered_says_so(call: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        call()


def test_channels_that_are_equal_have_the_same_edges_and_others_their_own():
    """Edges of small channels are found once; every column counts."""
    first, again = (collectives.all_reduce(np.arange(4), 1 << 20).channels for _ in range(2))
    assert first is not again
    assert patterns.edges(first) is patterns.edges(again)
    others = [
        collectives.all_reduce(np.arange(4), 1 << 21).channels,
        collectives.all_reduce(np.arange(1, 5), 1 << 20).channels,
        collectives.all_gather(np.arange(4), 1 << 20).channels,
        dataclasses.replace(first, offset_bytes=first.offset_bytes + 2),
        dataclasses.replace(first, element_bytes=4),
    ]  # fmt: skip
    for other in (*others, *others):
        found, expected = patterns.edges(other), patterns._edges(other)
        for field in dataclasses.fields(expected):
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))
    assert len(patterns._small) <= patterns._SMALL_KEPT
