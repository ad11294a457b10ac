"""The pool of KV blocks and prefix hits: invariants, and the order in which blocks are reused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.serving.cache.hits import PrefixSearch
from fabrictwin.serving.cache.manager import CacheLayout, KvCache
from fabrictwin.serving.cache.pool import BlockPool
from fabrictwin.serving.scheduler.release import NAMES, release
from fabrictwin.serving.scheduler.request import Request


def request(number: int, tokens: int, keys: int = 0) -> Request:
    return Request(
        number, tokens, 10, key_source=lambda start, stop: [keys + place for place in range(start, stop)]
    )


def cache(name: str = "0.19", blocks: int = 20, size: int = 4, windows: tuple[int, ...] = (0,)) -> KvCache:
    return KvCache(CacheLayout(blocks, 1000, size, windows, in_flight_tokens=8), release(name))


def test_a_freed_block_is_reused_last_and_found_until_then() -> None:
    pool = BlockPool(4, unhashed_first=False)
    (block,) = pool.take(1)
    pool.insert(block, 7)
    pool.release([block])
    assert pool.find(7) == block
    taken = pool.take(3)
    assert taken[-1] == block
    assert pool.find(7) == 0


def test_blocks_without_content_are_reused_first_from_0_33_on() -> None:
    for first, expected in ((False, [3, 1, 2]), (True, [2, 3, 1])):
        pool = BlockPool(4, unhashed_first=first)
        one, two = pool.take(2)
        pool.insert(one, 7)
        pool.release([one, two])
        assert pool.take(3) == expected


def test_the_same_content_twice_is_found_where_it_was_first() -> None:
    pool = BlockPool(4, unhashed_first=False)
    one, two = pool.take(2)
    pool.insert(two, 7)
    pool.insert(one, 7)
    assert pool.find(7) == two
    pool.release([two])
    pool.take(2)
    assert pool.find(7) == one


@given(st.data())
def test_references_and_free_list_agree(data: st.DataObject) -> None:
    pool = BlockPool(12, unhashed_first=data.draw(st.booleans()))
    held: list[int] = []
    for _ in range(data.draw(st.integers(1, 40))):
        act = data.draw(st.sampled_from(["take", "release", "insert", "touch"]))
        if act == "take" and pool.free_blocks:
            held += pool.take(data.draw(st.integers(1, pool.free_blocks)))
        elif act == "release" and held:
            pool.release([held.pop(data.draw(st.integers(0, len(held) - 1)))])
        elif act == "insert" and held:
            block = data.draw(st.sampled_from(held))
            if block not in [pool.find(key) for key in range(5)] and pool._keys[block] == -1:
                pool.insert(block, data.draw(st.integers(0, 4)))
        elif act == "touch" and (block := pool.find(data.draw(st.integers(0, 4)))):
            pool.touch([block])
            held.append(block)
        for block in range(1, 12):
            assert pool.references[block] == held.count(block)
        assert pool.free_blocks == 11 - len(set(held))


@given(
    cached=st.sets(st.integers(0, 15)),
    limit=st.integers(0, 64),
    window=st.integers(2, 20),
    drops=st.booleans(),
)
def test_a_hit_under_a_window_is_the_longest_whose_window_is_cached(
    cached: set[int], limit: int, window: int, drops: bool
) -> None:
    """Against a search of all lengths: what the next token sees must be there, to the first token or the
    window.
    """
    size = 4
    pool = BlockPool(40, unhashed_first=False)
    for place, block in zip(sorted(cached), pool.take(len(cached)), strict=True):
        pool.insert(block, place)
    found = PrefixSearch(pool, (window,), size, drops).find(list(range(16)), limit)
    needed = -(-(window - 1) // size) + drops
    longest = 0
    for blocks in range(limit // size, 0, -1):
        if all(place in cached for place in range(max(0, blocks - needed), blocks)):
            longest = blocks - drops
            break
    assert found.tokens == max(longest, 0) * size


@pytest.mark.parametrize("name", NAMES)
def test_a_prefix_is_found_and_never_all_tokens_of_a_request(name: str) -> None:
    one = cache(name)
    first = request(0, 16)
    one.enter(first)
    assert one.lookup(first) is None
    assert one.allocate(first, 16)
    again = request(1, 16)
    one.enter(again)
    hit = one.lookup(again)
    assert hit is not None
    assert hit.tokens == 12
    assert hit.blocks[0] == first.blocks[0][:3]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_allocated_where_blocks_do_not_last(name: str) -> None:
    one = cache(name, blocks=5)
    first = request(0, 40)
    one.enter(first)
    assert not one.allocate(first, 17)
    assert one.pool.free_blocks == 4
    assert one.allocate(first, 16)
    assert one.pool.free_blocks == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_window_lets_go_of_what_it_has_left(name: str) -> None:
    one = cache(name, windows=(8,))
    first = request(0, 32)
    one.enter(first)
    for _ in range(8):
        assert one.allocate(first, 4)
        first.computed += 4
    held = sum(block != 0 for block in first.blocks[0])
    assert held == 3
    one.free(first)
    assert one.pool.free_blocks == 19


def test_a_release_refuses_groups_that_it_has_no_search_for() -> None:
    with pytest.raises(ValueError, match=r"0\.12 takes groups of full attention"):
        cache("0.12", windows=(8, 16))
    cache("0.15", windows=(0, 8, 16))


@pytest.mark.parametrize(
    ("name", "taken"), [("0.12.0", "0.12"), ("v0.16", "0.15"), ("0.32.1", "0.19"), ("0.40", "0.33")]
)
def test_a_release_is_taken_for_the_nearest_that_is_not_newer(name: str, taken: str) -> None:
    assert release(name).name == taken


@pytest.mark.parametrize("name", ["0.11", "1.0", "latest", ""])
def test_other_releases_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected a release of vLLM"):
        release(name)
