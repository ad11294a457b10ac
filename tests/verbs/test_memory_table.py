"""The translation and protection table of an adapter, and the bytes behind it (IBTA volume 1, 10.6 and 11.2.8)."""

from __future__ import annotations

import ctypes

import pytest

from fabrictwin.verbs.adapter.memory_regions import TYPE_1, TYPE_2, Domain, Memory, ProcessMemory

LOCAL, WRITE, READ, ATOMIC, BIND, ZERO_BASED = 1, 2, 4, 8, 16, 32
EVERY = LOCAL | WRITE | READ | ATOMIC | BIND
AT, SIZE = 0x10000, 0x1000


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def domain():
    return Domain(1)


def region(memory, domain, access=EVERY, **more):
    return memory.register(domain, AT, SIZE, access=access, **more)


def test_keys_are_an_index_and_a_tag_and_are_not_used_twice(memory, domain):
    keys = []
    for _ in range(300):
        made = region(memory, domain)
        keys.append(made.key)
        assert made.handle == made.key >> 8
        memory.deregister(made)
    assert len(set(keys)) == 300
    assert [key >> 8 for key in keys] == list(range(keys[0] >> 8, (keys[0] >> 8) + 300))
    assert len({key & 0xFF for key in keys[:64]}) == 64  # a key guessed by counting on is wrong
    assert all(0 < key < 1 << 32 for key in keys)


@pytest.mark.parametrize(
    ("address", "length", "found"),
    [
        (AT, SIZE, AT),
        (AT, 1, AT),
        (AT + SIZE - 1, 1, AT + SIZE - 1),
        (AT - 1, 1, None),
        (AT - 1, 2, None),
        (AT + SIZE, 1, None),
        (AT + 1, SIZE, None),
        (AT + 100, 100, AT + 100),
    ],
)
def test_bounds_of_a_region(memory, domain, address, length, found):
    made = region(memory, domain)
    segments = memory.local_segments([(address, length, made.key)], domain, LOCAL)
    assert segments == (None if found is None else [(found, length)])
    place = memory.remote_place(made.key, address, length, domain=domain, access=WRITE, queue_pair=9)
    assert place == found


@pytest.mark.parametrize("held", [LOCAL, LOCAL | WRITE, LOCAL | READ, LOCAL | ATOMIC, READ, 0])
@pytest.mark.parametrize("wanted", [WRITE, READ, ATOMIC])
def test_rights_of_a_region(memory, domain, held, wanted):
    made = region(memory, domain, held)
    place = memory.remote_place(made.key, AT, 8, domain=domain, access=wanted, queue_pair=1)
    assert place == (AT if held & wanted else None)
    assert (memory.local_segments([(AT, 8, made.key)], domain, LOCAL) is not None) == bool(held & LOCAL)
    assert memory.local_segments([(AT, 8, made.key)], domain, 0) == [(AT, 8)]  # to be read no right is needed


def test_another_domain_or_key_opens_nothing(memory, domain):
    made, other = region(memory, domain), Domain(1)
    assert memory.local_segments([(AT, 8, made.key)], other, 0) is None
    assert memory.local_segments([(AT, 8, made.key + 1)], domain, 0) is None
    assert memory.remote_place(made.key, AT, 8, domain=other, access=READ, queue_pair=1) is None
    assert memory.remote_place(made.key + 1, AT, 8, domain=domain, access=READ, queue_pair=1) is None
    memory.deregister(made)
    assert memory.local_segments([(AT, 8, made.key)], domain, 0) is None
    assert memory.remote_place(made.key, AT, 8, domain=domain, access=READ, queue_pair=1) is None


def test_pieces_without_length_name_nothing(memory, domain):
    made = region(memory, domain)
    pieces = [(AT, 8, made.key), (1, 0, 77), (AT + 64, 16, made.key)]
    assert memory.local_segments(pieces, domain, LOCAL) == [(AT, 8), (AT + 64, 16)]
    assert memory.local_segments([], domain, LOCAL) == []


def test_regions_by_offset_or_by_an_address_of_their_own(memory, domain):
    zero = region(memory, domain, EVERY | ZERO_BASED)
    assert memory.local_segments([(5, 7, zero.key)], domain, 0) == [(AT + 5, 7)]
    assert memory.local_segments([(AT, 7, zero.key)], domain, 0) is None
    named = region(memory, domain, EVERY | ZERO_BASED, iova=0x77)
    assert memory.local_segments([(0x77, SIZE, named.key)], domain, 0) == [(AT, SIZE)]
    assert memory.local_segments([(0x76, 1, named.key)], domain, 0) is None
    assert (zero.start, zero.end, named.start, named.end) == (0, SIZE, 0x77, 0x77 + SIZE)
    assert memory.find(named.handle) is named
    assert memory.find(named.handle + 1) is None


def test_a_change_keeps_the_key_and_makes_places_that_were_checked_stale(memory, domain):
    made, other, before = region(memory, domain), Domain(2), memory.epoch
    memory.change(made, domain=other)
    assert memory.epoch == before + 1
    assert memory.local_segments([(AT, 1, made.key)], domain, 0) is None
    assert memory.local_segments([(AT, 1, made.key)], other, 0) == [(AT, 1)]
    memory.change(made, access=READ)
    assert memory.local_segments([(AT, 1, made.key)], other, LOCAL) is None
    memory.change(made, place=(0x20000, 16))
    assert memory.local_segments([(0x20000, 16, made.key)], other, 0) == [(0x20000, 16)]
    assert memory.local_segments([(0x20000, 17, made.key)], other, 0) is None
    memory.change(made, access=EVERY | ZERO_BASED)
    memory.change(made, place=(0x30000, 16))
    assert memory.local_segments([(0, 16, made.key)], other, 0) == [(0x30000, 16)]
    memory.deregister(made)
    assert memory.epoch == before + 6


def bind(memory, window, made, key=None, *, address=AT, length=64, access=READ, queue_pair=3):
    wanted = window.key + 1 if key is None else key
    return memory.bind(
        window, made, key=wanted, address=address, length=length, access=access, queue_pair=queue_pair
    )


def test_a_window_opens_its_part_to_who_may(memory, domain):
    made, window = region(memory, domain), memory.window(domain, TYPE_2)
    assert window.key != made.key
    assert (window.handle, window.kind) == (window.key >> 8, TYPE_2)
    old = window.key
    assert bind(memory, window, made, address=AT + 8, length=16, access=READ | WRITE)
    assert (window.key, made.windows) == (old + 1, 1)

    def place(address, length, **more):
        wanted = {"domain": domain, "access": READ, "queue_pair": 3} | more
        return memory.remote_place(window.key, address, length, **wanted)

    assert place(AT + 8, 16) == AT + 8
    assert place(AT + 8, 17) is None
    assert place(AT + 7, 1) is None
    assert place(AT + 8, 16, access=ATOMIC) is None
    assert place(AT + 8, 16, queue_pair=4) is None  # type 2B: of the queue pair that bound it
    assert place(AT + 8, 16, domain=Domain(1)) is None
    assert memory.remote_place(old, AT + 8, 1, domain=domain, access=READ, queue_pair=3) is None
    memory.deregister(made)
    assert place(AT + 8, 16) is None


def test_a_window_by_offset(memory, domain):
    made, window = region(memory, domain), memory.window(domain, TYPE_1)
    assert bind(memory, window, made, address=AT + 32, length=8, access=READ | ZERO_BASED)

    def place(address, length):
        return memory.remote_place(window.key, address, length, domain=domain, access=READ, queue_pair=99)

    assert place(0, 8) == AT + 32  # type 1: of any queue pair
    assert place(1, 8) is None
    assert place(AT + 32, 8) is None


@pytest.mark.parametrize(
    ("held", "more"),
    [
        (LOCAL, {}),  # the region does not allow windows
        (READ | BIND, {"access": WRITE}),  # remote writes want local ones
        (READ | BIND, {"access": ATOMIC}),
        (EVERY, {"address": AT - 1}),
        (EVERY, {"address": AT + SIZE - 63}),
        (EVERY, {"key": 77}),  # not of this window
    ],
)
def test_binds_that_are_refused(memory, domain, held, more):
    made, window = region(memory, domain, held), memory.window(domain, TYPE_2)
    assert not bind(memory, window, made, **more)
    assert made.windows == 0
    assert not isinstance(window.region, type(made))


def test_binds_that_are_just_allowed(memory, domain):
    made = region(memory, domain, READ | BIND)
    assert bind(memory, memory.window(domain, TYPE_2), made)
    assert bind(memory, memory.window(domain, TYPE_2), made, address=AT + SIZE - 64)
    assert not bind(memory, memory.window(Domain(1), TYPE_2), made)
    assert made.windows == 2
    memory.deregister(made)
    assert not bind(memory, memory.window(domain, TYPE_2), made)


def test_windows_are_bound_anew_by_kind(memory, domain):
    made, one, two = region(memory, domain), memory.window(domain, TYPE_1), memory.window(domain, TYPE_2)
    for window in (one, two):
        assert bind(memory, window, made)
    first = one.key
    assert bind(memory, one, made)  # type 1 is bound over
    assert one.key == first + 1
    assert first not in memory.remote
    assert not bind(memory, two, made)  # type 2 is invalidated first
    assert bind(memory, one, made, length=0)  # unbinds
    assert made.windows == 1
    assert one.key not in memory.remote
    memory.free(two)
    assert made.windows == 0
    assert two.key not in memory.remote


def test_invalidation_is_the_binder_s_and_of_type_2(memory, domain):
    made, one, two = region(memory, domain), memory.window(domain, TYPE_1), memory.window(domain, TYPE_2)
    assert bind(memory, one, made)
    assert bind(memory, two, made)
    assert not memory.invalidate(one.key, domain, 3)
    assert not memory.invalidate(made.key, domain, 3)
    assert not memory.invalidate(two.key, domain, 4)
    assert not memory.invalidate(two.key, Domain(1), 3)
    assert not memory.invalidate(two.key + 1, domain, 3)
    assert memory.invalidate(two.key, domain, 3)
    assert not memory.invalidate(two.key, domain, 3)
    assert made.windows == 1


# ---------------------------------------------------------------------- bytes


@pytest.fixture
def ground():
    """64 bytes that count up, their address, and memory that reads them."""
    buffer = ctypes.create_string_buffer(bytes(range(64)), 64)
    return buffer, ctypes.addressof(buffer), ProcessMemory()


def pieces(at, *spans):
    return [(at + start, length) for start, length in spans]


@pytest.mark.parametrize("into", [[(0, 10)], [(0, 4), (20, 6)], [(0, 1), (2, 3), (9, 20)], [(0, 10), (30, 5)]])
def test_bytes_are_scattered_in_order(ground, into):
    buffer, at, memory = ground
    expected, data = bytearray(range(64)), b"abcdefghij"
    rest = data
    for start, room in into:
        expected[start : start + min(room, len(rest))] = rest[:room]
        rest = rest[room:]
    memory.scatter(data, pieces(at, *into))
    assert buffer.raw == bytes(expected)


@pytest.mark.parametrize("source", [[(0, 12)], [(0, 5), (6, 7)], [(0, 3), (3, 3), (10, 6)]])
@pytest.mark.parametrize("target", [[(32, 12)], [(32, 20)], [(32, 4), (40, 8)], [(32, 5), (40, 1), (50, 9)]])
def test_segments_move_into_segments(ground, source, target):
    buffer, at, memory = ground
    moved = b"".join(bytes(range(start, start + length)) for start, length in source)
    assert memory.gather(pieces(at, *source)) == moved
    memory.move(pieces(at, *source), pieces(at, *target))
    left, expected = moved, bytearray(range(64))
    for start, room in target:
        part, left = left[:room], left[room:]
        expected[start : start + len(part)] = part
    assert buffer.raw == bytes(expected)


def test_atomics_on_a_word(ground):
    buffer, at, memory = ground
    word = ctypes.c_uint64.from_address(at + 8)
    word.value = 40
    assert memory.fetch_add(at + 8, 2) == 40
    assert word.value == 42
    assert memory.fetch_add(at + 8, 2**64 - 43) == 42
    assert word.value == 2**64 - 1
    assert memory.fetch_add(at + 8, 1) == 2**64 - 1
    assert word.value == 0
    assert memory.compare_swap(at + 8, 1, 9) == 0
    assert word.value == 0
    assert memory.compare_swap(at + 8, 0, 2**64 + 9) == 0
    assert word.value == 9
    assert buffer.raw[:8] == bytes(range(8))
    assert buffer.raw[16:] == bytes(range(16, 64))


def test_eight_bytes_around_an_atomic_stay(ground):
    buffer, at, memory = ground
    top = int.from_bytes(bytes(range(8, 16)), "little")
    assert memory.compare_swap(at + 8, top, 0) == top
    assert memory.fetch_add(at + 16, 0) == int.from_bytes(bytes(range(16, 24)), "little")
    assert buffer.raw == bytes(range(8)) + bytes(8) + bytes(range(16, 64))
