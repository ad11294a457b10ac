"""Attributes as tables of bit fields.

An attribute is a dataclass whose fields say where they lie, `row(offset, *widths)` those of a word, as the tables
of the InfiniBand Architecture (volume 1, chapters 13 to 16) show them; bits count from the most significant of the
first byte.
Encoding and decoding are derived from the table and compiled once for each attribute: the bytes are unpacked
into as few machine words as hold the fields, and each field is a shift and a mask of one word.

Any bytes decode as long as there are enough of them; reserved bits are dropped. Encoding refuses a value that
its field cannot hold. Both raise `MadError` and nothing else.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from fabrictwin.base.errors import FabrictwinError
from fabrictwin.base.records import record

Value = TypeVar("Value")


class MadError(FabrictwinError):
    """Bytes that are not what they should be, or a value that no field can carry."""


@record
class Place:
    """Position of a field, in bits from the start of the attribute. `count` 0 is a single value."""

    offset: int
    width: int
    count: int = 0
    stride: int = 0
    is_bytes: bool = False

    @property
    def end(self) -> int:
        return self.offset + (self.width if not self.count else (self.count - 1) * self.stride + self.width)


class Declared(Generic[Value]):
    """A field as a class declares it: its place, and its value where none is given."""

    def __init__(self, place: Place, default: Value) -> None:
        self.place, self.default = place, default

    if TYPE_CHECKING:  # a field of the dataclass takes its place

        def __get__(self, record: object, owner: type | None = None) -> Value: ...

        def __set__(self, record: object, value: Value) -> None: ...


def bits(offset: int, width: int, default: int = 0) -> Declared[int]:
    """Declare an unsigned integer of `width` bits."""
    return Declared(Place(offset, width), default)


def row(offset: int, *widths: int) -> tuple[Declared[int], ...]:
    """Declare unsigned integers that follow each other, mostly those of a word of 32 bits."""
    starts = accumulate(widths, initial=offset)
    return tuple(bits(start, width) for start, width in zip(starts, widths, strict=False))


def array(offset: int, width: int, *, count: int, stride: int = 0) -> Declared[tuple[int, ...]]:
    """Declare `count` integers, `stride` bits from one to the next (default: their width), as a tuple."""
    return Declared(Place(offset, width, count=count, stride=stride or width), (0,) * count)


def raw(offset: int, size: int) -> Declared[bytes]:
    """Declare `size` bytes from byte `offset`."""
    return Declared(Place(8 * offset, 8 * size, is_bytes=True), bytes(size))


_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


class _Codec:
    """The table of one attribute, compiled."""

    def __init__(self, places: Sequence[Place], size: int) -> None:
        self.size = size
        self.places = places
        self.values: Callable[[Attribute], tuple[Any, ...]] | None = None
        singles: list[tuple[int, int]] = []  # (offset, width) of every integer, arrays spelled out
        self._slots: list[tuple[int, int]] = []  # each field's first single and how many
        for place in places:
            if place.end > 8 * size:
                raise MadError(f"a field ends at bit {place.end} of an attribute of {8 * size} bits")
            first = len(singles)
            if not place.is_bytes:
                for i in range(place.count or 1):
                    singles.append((place.offset + i * place.stride, place.width))
            self._slots.append((first, len(singles) - first))
        words, is_bytes = _words(singles, [p for p in places if p.is_bytes])
        formats, at = [">"], 0
        for (start, end), whole in zip(words, is_bytes, strict=True):
            formats.append(f"{start - at}x" if start > at else "")
            formats.append(f"{end - start}s" if whole or end - start not in _CODES else _CODES[end - start])
            at = end
        formats.append(f"{size - at}x" if size > at else "")
        self.struct = struct.Struct("".join(formats))
        # words that struct has no code for, and GIDs and the like, go through bytes
        self._wide = [
            w
            for w, ((start, end), whole) in enumerate(zip(words, is_bytes, strict=True))
            if not whole and end - start not in _CODES
        ]
        self._word_bytes = [end - start for start, end in words]
        number = {start: w for w, (start, _) in enumerate(words)}
        starts = sorted(number)
        self._plan: list[tuple[int, int, int]] = []  # word, shift, mask of every single
        for offset, width in singles:
            start = max(s for s in starts if 8 * s <= offset)
            word = number[start]
            end = 8 * words[word][1]
            self._plan.append((word, end - offset - width, (1 << width) - 1))
        self._byte_word = [number[p.offset // 8] if p.is_bytes else -1 for p in places]
        self._simple = all(not p.count and not p.is_bytes for p in places)

    def decode(self, data: bytes | bytearray | memoryview, at: int) -> list[Any]:
        try:
            words: list[Any] = list(self.struct.unpack_from(data, at))
        except struct.error as error:
            raise MadError(f"got {max(len(data) - at, 0)} bytes, expected at least {self.size}") from error
        for w in self._wide:
            words[w] = int.from_bytes(words[w], "big")
        singles = [(words[w] >> shift) & mask for w, shift, mask in self._plan]
        if self._simple:
            return singles
        values: list[Any] = []
        for place, (first, n), w in zip(self.places, self._slots, self._byte_word, strict=True):
            if place.is_bytes:
                values.append(words[w])
            else:
                values.append(tuple(singles[first : first + n]) if place.count else singles[first])
        return values

    def encode(self, values: Sequence[Any]) -> bytes:
        words: list[Any] = [0] * len(self._word_bytes)
        try:
            if self._simple:
                for value, (word, shift, mask) in zip(values, self._plan, strict=True):
                    if not 0 <= value <= mask:
                        raise MadError(f"got {value}, expected 0 to {mask}")
                    words[word] |= value << shift
            else:
                self._fill(words, values)
            for w in self._wide:
                words[w] = words[w].to_bytes(self._word_bytes[w], "big")
            return self.struct.pack(*words)
        except (TypeError, ValueError, struct.error) as error:
            raise MadError(f"a value that its field cannot carry: {error}") from error

    def _fill(self, words: list[Any], values: Sequence[Any]) -> None:
        """Put the values of all kinds of fields into words."""
        for value, place, (first, n), w in zip(values, self.places, self._slots, self._byte_word, strict=True):
            if place.is_bytes:
                if len(value) > place.width // 8:
                    raise MadError(f"got {len(value)} bytes, expected at most {place.width // 8}")
                words[w] = bytes(value)
                continue
            parts = value if place.count else (value,)
            if len(parts) != n:
                raise MadError(f"got {len(parts)} values, expected {n}")
            for part, (word, shift, mask) in zip(parts, self._plan[first : first + n], strict=True):
                if not 0 <= part <= mask:
                    raise MadError(f"got {part}, expected 0 to {mask}")
                words[word] |= part << shift


def _words(singles: list[tuple[int, int]], whole: list[Place]) -> tuple[list[tuple[int, int]], list[bool]]:
    """Byte ranges that cover every field: single fields' ranges merged where they overlap, raw bytes alone."""
    ranges = sorted({(o // 8, (o + w + 7) // 8) for o, w in singles})
    merged: list[list[int]] = []
    for start, end in ranges:
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    words = [((start, end), False) for start, end in merged]
    words += [((p.offset // 8, (p.offset + p.width) // 8), True) for p in whole]
    words.sort()
    for ((_, end), _), ((start, _), _) in pairwise(words):
        if start < end:
            raise MadError(f"bytes {start} to {end} belong to two fields")
    return [span for span, _ in words], [flag for _, flag in words]


_CODECS: dict[type, _Codec] = {}


def _codec(kind: type[Attribute]) -> _Codec:
    """The codec of a class, made when it is first used."""
    codec = _CODECS.get(kind)
    if codec is None:
        parts = dataclasses.fields(kind)
        codec = _CODECS[kind] = _Codec([part.metadata["place"] for part in parts], kind.SIZE)
        codec.values = attrgetter(*(part.name for part in parts)) if len(parts) > 1 else None
    return codec


class _Dataclass(type):
    """Makes a dataclass with slots of the fields that a class declares, in their order."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, size: int = 0, id: int = 0
    ) -> Any:
        """Return the class. `dataclass` asks for it a second time, with its slots."""
        if "__slots__" in namespace:
            return super().__new__(cls, name, bases, namespace)
        declared = {key: value for key, value in namespace.items() if isinstance(value, Declared)}
        fields = {key: field(default=one.default, metadata={"place": one.place}) for key, one in declared.items()}
        own = {"SIZE": size, "ID": id}
        namespace |= fields | {key: value for key, value in own.items() if value}
        namespace["__annotations__"] = dict.fromkeys(fields, "Any")
        return dataclass(slots=True)(super().__new__(cls, name, bases, namespace))


class Attribute(metaclass=_Dataclass):
    """A structure of `SIZE` bytes. Subclasses declare fields with `row`, `bits`, `array` or `raw`.

    `class NodeInfo(Attribute, size=40, id=0x11)` names its size and its AttributeID; what has no size is only the
    part that several structures begin with.
    """

    __slots__ = ()
    SIZE: ClassVar[int] = 0
    ID: ClassVar[int] = 0

    if TYPE_CHECKING:  # a dataclass
        __dataclass_fields__: ClassVar[dict[str, Any]]
        __match_args__: ClassVar[tuple[str, ...]]

        def __init__(self, **values: Any) -> None:
            """Take fields by name; the others have their defaults."""

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, at: int = 0) -> Self:
        """From the bytes at `at`. Raises MadError where there are too few."""
        return cls(*_codec(cls).decode(data, at))

    def encode(self) -> bytes:
        """`SIZE` bytes. Raises MadError where a value does not fit its field."""
        codec = _codec(type(self))
        if codec.values is not None:
            return codec.encode(codec.values(self))
        return codec.encode([getattr(self, type(self).names()[0])])

    def take(self, other: Self, *names: str) -> None:
        """Set fields to what another's hold."""
        for name in names:
            setattr(self, name, getattr(other, name))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Field names in the order of the table."""
        return cls.__match_args__

    @classmethod
    def place(cls, name: str) -> Place:
        """Return the position of a field. Raises KeyError."""
        places: dict[str, Place] = {f.name: f.metadata["place"] for f in dataclasses.fields(cls)}
        return places[name]


class Field:
    """One integer field of an attribute, to read or write in place without decoding the rest."""

    def __init__(self, attribute: type[Attribute], name: str, at: int = 0) -> None:
        place = attribute.place(name)
        if place.count or place.is_bytes:
            raise MadError(f"{name} is not a single integer")
        self.first, self.last = at + place.offset // 8, at + (place.offset + place.width + 7) // 8
        self.shift = 8 * (self.last - at) - place.offset - place.width
        self.mask = (1 << place.width) - 1

    @cached_property
    def _keep(self) -> int:
        return ~(self.mask << self.shift)

    def get(self, data: bytes | bytearray | memoryview, at: int = 0) -> int:
        return (int.from_bytes(data[at + self.first : at + self.last], "big") >> self.shift) & self.mask

    def put(self, data: bytearray | memoryview, value: int, at: int = 0) -> None:
        first, last = at + self.first, at + self.last
        old = int.from_bytes(data[first:last], "big")
        data[first:last] = ((old & self._keep) | (value & self.mask) << self.shift).to_bytes(last - first, "big")
