"""Inputs for fuzzing: samples with what usually breaks a reader put into them. The same seed, the same input."""

from __future__ import annotations

import random
import re

MOST_BYTES = 1 << 16

NUMBERS = [
    b"0", b"-1", b"1", b"2", b"255", b"256", b"65535", b"65536", b"2147483647", b"4294967296",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"-9223372036854775809",
    b"1e9", b"1e308", b"1e400", b"-0", b"0x0", b"0xffffffffffffffff", b"0x1ffffffffffffffff", b".5", b"5.",
    b"NaN", b"inf", b"-inf", b".nan", b".inf", b"1_000", b"0777", b"1/0", b"800000000", b"7777777777",
    b"9" * 4400, b"0x" + b"f" * 4400, b"1" * 41, b"\xd9\xa3\xd9\xa4", "²".encode(),
]  # fmt: skip
WORDS = [
    b"", b" ", b"\t", b"\r", b"\n", b"\n\n", b"\0", b"'", b'"', b"\\", b"#", b":", b": ", b"=", b",", b";", b"/", b"-",
    b"- ", b"..", b"%", b"*", b"&a", b"*a", b"<<", b"!!int ", b"!!python/object ", b"|", b">", b"[", b"]", b"{", b"}",
    b"[]", b"{}", b"[[", b"null", b"true", b"on", b"~", b"None", b"\xff", b"\xc3\x28", b"\xed\xa0\x80",
    "\N{BYTE ORDER MARK}".encode(), "é".encode(), "\u2028".encode(), "\x85".encode(), b"x" * 3000, b"[" * 200,
    b"{a: " * 100, b"GB/s", b" Gb/s", b" us", b" MiB", b"k", b"gpu0..gpu7777777777", b"gpu0..gpu7", b"<a>", b"</a>",
    b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&amp;", b"../../etc/passwd", b"/dev/zero", b"__class__",
]  # fmt: skip

_NUMBER = re.compile(rb"\d+")
_TOKEN = re.compile(rb"[\w.+-]+")


def mutated(samples: list[bytes], number: int, seed: int) -> bytes:
    """Input `number` of a target with these samples."""
    draw = random.Random(seed * 1_000_003 + number)
    data = samples[draw.randrange(len(samples))]
    if number < len(samples):
        return samples[number]  # as they are, first
    for _ in range(1 + min(int(draw.expovariate(0.6)), 12)):
        data = _ONE[draw.randrange(len(_ONE))](draw, data, samples)
    return data[:MOST_BYTES]


def _span(draw: random.Random, data: bytes) -> tuple[int, int]:
    at = draw.randrange(len(data) + 1)
    return at, min(len(data), at + int(draw.expovariate(0.1)))


def _flip(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    if not data:
        return b"\0"
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]


def _byte(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]


def _cut(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    a, b = _span(draw, data)
    return data[:a] + data[b:]


def _truncate(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _double(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    a, b = _span(draw, data)
    return data[:b] + data[a:b] * draw.choice((1, 1, 1, 2, 40)) + data[b:]


def _word(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice(WORDS) + data[at:]


def _other_word(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    found = list(_TOKEN.finditer(data))
    if not found:
        return data
    token = draw.choice(found)
    new = draw.choice(found)[0] if draw.random() < 0.5 else draw.choice(WORDS)
    return data[: token.start()] + new + data[token.end() :]


def _other_number(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data + draw.choice(NUMBERS)
    token = draw.choice(found)
    new = b"%d" % (int(token[0][:18]) + draw.choice((-1, 1, 7))) if draw.random() < 0.4 else draw.choice(NUMBERS)
    return data[: token.start()] + new + data[token.end() :]


def _lines(draw: random.Random, data: bytes, samples: list[bytes]) -> bytes:
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    what = draw.randrange(5)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(at, lines[draw.randrange(len(lines))])
    elif what == 2:
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif what == 3:
        lines[at] = b" " * draw.randrange(5) + lines[at].strip()
    else:
        others = draw.choice(samples).split(b"\n")
        lines.insert(at, others[draw.randrange(len(others))])
    return b"\n".join(lines)


def _splice(draw: random.Random, data: bytes, samples: list[bytes]) -> bytes:
    other = draw.choice(samples)
    a, b = _span(draw, other)
    at = draw.randrange(len(data) + 1)
    return data[:at] + other[a:b] + data[at:]


_ONE = (
    _flip, _byte, _cut, _truncate, _double, _word, _word, _other_word, _other_word, _other_number, _other_number,
    _lines, _lines, _splice,
)  # fmt: skip
