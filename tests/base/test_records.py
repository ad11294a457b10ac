"""Records are what frozen dataclasses are."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar

import pytest

from fabrictwin.base.records import record


class Plain:
    """Fields of each kind."""

    first: int
    second: str = "b"
    many: list[int] = field(default_factory=list, compare=False)
    hidden: float = field(default=1.5, repr=False, hash=False)
    fixed: int = field(default=7, init=False)
    made: tuple[int, ...] = field(default_factory=lambda: (1, 2), init=False)
    late: int = field(default=3, kw_only=True)
    shared: ClassVar[int] = 5

    def __post_init__(self):
        if self.first < 0:
            raise ValueError("negative")

    @cached_property
    def double(self):
        return 2 * self.first


class Empty:
    """No field."""


class One:
    """One field, and an equality of its own."""

    only: int

    def __eq__(self, other):
        return True


class Shown:
    """Writes and hashes itself."""

    only: int

    def __repr__(self):
        return "shown"

    def __hash__(self):
        return 4


def copied(kind):
    inside = {name: value for name, value in kind.__dict__.items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, (), inside | {"__qualname__": kind.__qualname__})


def both(kind, **options):
    return record(**options)(copied(kind)), dataclass(frozen=True, **options)(copied(kind))


@record
class Base:
    """At module level: pickle finds it."""

    a: int
    b: tuple[int, ...] = ()


@record
class Derived(Base):
    """With a field more, and another default."""

    b: tuple[int, ...] = (9,)
    c: str = "c"


@dataclass(frozen=True)
class PlainBase:
    """As Base."""

    a: int
    b: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlainDerived(PlainBase):
    """As Derived."""

    b: tuple[int, ...] = (9,)
    c: str = "c"


@pytest.mark.parametrize("options", [{}, {"kw_only": True}, {"eq": False}])
@pytest.mark.parametrize("kind", [Plain, Empty, One, Shown])
def test_a_record_has_the_constructor_the_fields_and_the_text_of_a_frozen_dataclass(kind, options):
    ours, theirs = both(kind, **options)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert [(each.name, each.type, each.init, each.kw_only) for each in fields(ours)] == [
        (each.name, each.type, each.init, each.kw_only) for each in fields(theirs)
    ]
    assert ours.__match_args__ == theirs.__match_args__
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    given = {each.name: 3 for each in fields(ours) if each.init}
    assert repr(ours(**given)) == repr(theirs(**given))
    assert asdict(ours(**given)) == asdict(theirs(**given))
    for name in ("__init__", "__repr__", "__eq__", "__hash__"):
        ours_of, theirs_of = getattr(ours, name), getattr(theirs, name)
        assert getattr(ours_of, "__qualname__", None) == getattr(theirs_of, "__qualname__", None)


@pytest.mark.parametrize("kind", [Plain, Empty, One, Shown])
def test_records_are_equal_and_hash_as_frozen_dataclasses(kind):
    ours, theirs = both(kind)
    names = [each.name for each in fields(ours) if each.init]
    values = [{name: base + at for at, name in enumerate(names)} for base in (1, 2)]
    for left in values:
        for right in values:
            assert (ours(**left) == ours(**right)) == (theirs(**left) == theirs(**right))
        assert hash(ours(**left)) == hash(theirs(**left))
    assert (ours(**values[0]) == theirs(**values[0])) == (theirs(**values[0]) == ours(**values[0]))


def test_what_is_not_compared_and_not_hashed_is_left_out():
    ours, _ = both(Plain)
    assert ours(1, many=[1]) == ours(1, many=[2])
    assert ours(1, hidden=2.0) != ours(1)
    assert hash(ours(1, hidden=2.0)) == hash(ours(1))


def test_each_has_its_own_default_and_is_checked_when_it_is_made():
    ours, _ = both(Plain)
    assert ours(1).many is not ours(1).many
    assert ours(1).double == 2
    with pytest.raises(ValueError, match="negative"):
        ours(-1)
    with pytest.raises(TypeError, match=r"Plain.__init__\(\) missing 1 required positional argument: 'first'"):
        ours()


def test_nothing_is_assigned_or_deleted():
    one = Derived(1)
    for change in (lambda: setattr(one, "a", 2), lambda: setattr(one, "other", 2), lambda: delattr(one, "c")):
        with pytest.raises(FrozenInstanceError):
            change()
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        one.a = 2

    class Loose(Base):
        """No record itself: it may have more."""

    loose = Loose(1)
    loose.more = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del loose.a


def test_records_inherit_fields_as_dataclasses_do():
    assert repr(Derived(1)) == repr(PlainDerived(1)).replace("Plain", "")
    assert hash(Derived(1)) == hash(PlainDerived(1))
    assert Base(1) != Derived(1, (), "c")
    assert replace(Derived(1), c="d") == Derived(1, (9,), "d")
    match Derived(4):
        case Derived(a, b, c):
            assert (a, b, c) == (4, (9,), "c")


def test_records_are_copied_and_pickled():
    one = Derived(1, (2, 3))
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == copy.deepcopy(one) == one


def test_one_that_holds_itself_is_written():
    one = Base([])
    one.a.append(one)
    assert repr(one) == "Base(a=[...], b=())"
