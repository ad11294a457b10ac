"""Records: frozen dataclasses that are made in a fifth of the time.

A command imports hundreds of them. `dataclasses` writes each its own source of seven methods and compiles it, two
thirds of a millisecond a class; here the constructor alone is compiled, and the rest are functions that all share.
What a record is and does is as `dataclasses.dataclass(frozen=True)` has it, `fields`, `replace`, `asdict` and
`match` included; it takes no `InitVar`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


class _Made:
    """In place of a value that a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


@overload
def record(cls: type[T], /) -> type[T]: ...
@overload
def record(*, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, Field))
def record(cls: Any = None, /, *, eq: bool = True, kw_only: bool = False) -> Any:
    """Class decorator: make a frozen dataclass of a class, `eq` and `kw_only` as dataclasses have them."""

    def decorate(cls: type[T]) -> type[T]:
        made = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        fields = dataclasses.fields(made)  # type: ignore[arg-type]
        methods: dict[str, Any] = {
            "__init__": _constructor(fields, hasattr(made, "__post_init__")),
            "__repr__": _repr(fields),
        }
        if eq:
            methods |= _comparison(fields)
        # a class with its own `__eq__` and nothing else has None for `__hash__`
        methods = {name: method for name, method in methods.items() if cls.__dict__.get(name) is None}
        for name, method in (methods | _refusals(made, fields)).items():
            method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
            setattr(made, name, method)
        return made

    return decorate if cls is None else decorate(cls)


def _constructor(fields: tuple[Field[Any], ...], checked: bool) -> Callable[..., None]:
    """Return `__init__`: its parameters are the fields, in order, and those by keyword alone behind the others."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_made": _Made()}
    by_place: list[str] = []
    by_name: list[str] = []
    body: list[str] = []
    for field in fields:
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            known[f"_make_{name}"] = field.default_factory
            made = f"_make_{name}()"
            value, default = (f"{made} if {name} is _made else {name}", "=_made") if field.init else (made, "")
        elif field.default is not MISSING:
            known[f"_default_{name}"] = field.default
            default = f"=_default_{name}"
        else:
            default = ""
        if field.init:
            (by_name if field.kw_only else by_place).append(name + default)
        elif field.default_factory is MISSING:
            continue  # what the class has is its value
        body.append(f" _set(_self, {name!r}, {value})")
    if checked:
        body.append(" _self.__post_init__()")
    given = ", ".join(["_self", *by_place, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({given}):\n" + "\n".join(body or [" pass"]), known)  # as dataclasses does
    made_init: Callable[..., None] = known["__init__"]
    made_init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return made_init


def _values(fields: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes some fields of a record, as a tuple."""
    if len(fields) > 1:
        return attrgetter(*fields)
    if not fields:
        return lambda _: ()
    take = attrgetter(*fields)
    return lambda of: (take(of),)


def _comparison(fields: tuple[Field[Any], ...]) -> dict[str, Any]:
    compared = _values([field.name for field in fields if field.compare])
    hashed = _values([field.name for field in fields if (field.compare if field.hash is None else field.hash)])

    def equals(self: Any, other: Any) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: Any) -> int:
        return hash(hashed(self))

    return {"__eq__": equals, "__hash__": hash_of}


def _repr(fields: tuple[Field[Any], ...]) -> Callable[[Any], str]:
    shown = [field.name for field in fields if field.repr]

    @recursive_repr()
    def text(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    return text


def _refusals(cls: Any, fields: tuple[Field[Any], ...]) -> dict[str, Any]:
    names = frozenset(field.name for field in fields)

    def check(self: Any, name: str, what: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot {what} field {name!r}")

    def assign(self: Any, name: str, value: Any) -> None:
        check(self, name, "assign to")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        check(self, name, "delete")
        super(cls, self).__delattr__(name)

    return {"__setattr__": assign, "__delattr__": delete}
