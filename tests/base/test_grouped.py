"""Records of records, made from and read by single names."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fabrictwin.base.grouped import flat, grouped


@dataclass(frozen=True)
class Inner:
    width: int = 1
    depth: int = 2


@dataclass(frozen=True)
class Middle:
    lanes: int = 3
    inner: Inner = Inner()


@dataclass(frozen=True)
class Outer:
    name: str = "a"
    width: int = 9
    lanes: Middle = Middle()


def test_values_go_to_the_group_that_has_them():
    assert grouped(Outer(), {"depth": 5, "lanes": 4}) == Outer(lanes=Middle(4, Inner(depth=5)))
    assert grouped(Outer(), {}) == Outer()


def test_a_records_own_field_comes_before_a_groups():
    assert grouped(Outer(), {"width": 7}) == Outer(width=7)


def test_a_whole_group_may_be_given():
    assert grouped(Outer(), {"lanes": Middle(8)}) == Outer(lanes=Middle(8))


def test_a_name_that_nothing_has_is_refused():
    with pytest.raises(TypeError, match="Outer has no height, weight"):
        grouped(Outer(), {"weight": 1, "height": 2})


def test_flat_has_every_value():
    assert flat(Middle(4)) == {"lanes": 4, "width": 1, "depth": 2}
