"""Lines of a large stream, block by block, with what tells them apart before any regular expression.

Of each line a compiled scan says which texts it holds, of those without which no format begins and no message is
known, and keys of its shape and of what it says.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from fabrictwin.base.arrays import I32, U8
from fabrictwin.base.records import record
from fabrictwin.diagnosis.readers.line_shapes import PREFIX
from fabrictwin.kernel.text.line_scan import (
    DIGIT,
    HEXADECIMAL,
    LETTER,
    OTHER,
    find_texts,
    line_keys,
    split_lines,
)

BLOCK_BYTES = 1 << 20
LETTERS, ASCII = 26, 128
NOT_A_WORD = -1


@record
class Automaton:
    """An automaton of Aho and Corasick that finds words in a text."""

    following: I32  # [states, symbols]: the next state
    holds: U8  # [states]: bits of all words that end here, alone or within others
    words: I32  # [states]: the length of the word that a state is; NOT_A_WORD where it is none


def automaton(words: Iterable[tuple[Sequence[int], int]], symbols: int) -> Automaton:
    """Return the automaton of words of symbols, each with its bits."""
    children: list[dict[int, int]] = [{}]
    lengths, bits = [NOT_A_WORD], [0]
    for word, own in words:
        state = 0
        for symbol in word:
            found = children[state].get(symbol)
            if found is None:
                found = children[state][symbol] = len(children)
                children.append({})
                lengths.append(NOT_A_WORD)
                bits.append(0)
            state = found
        lengths[state] = len(word)
        bits[state] |= own
    following = np.zeros((len(children), symbols), dtype=np.int32)
    holds = np.array(bits, dtype=np.uint8)
    fallback = [0] * len(children)
    waiting = deque([0])
    while waiting:
        state = waiting.popleft()
        if state:
            following[state] = following[fallback[state]]
            holds[state] |= holds[fallback[state]]
        for symbol, child in children[state].items():
            fallback[child] = int(following[state, symbol]) if state else 0
            following[state, symbol] = child
            waiting.append(child)
    return Automaton(following, holds, np.array(lengths, dtype=np.int32))


def byte_kinds() -> U8:
    """Return for each byte what the scan takes it for, uint8 [256]."""
    kinds = np.full(256, OTHER, dtype=np.uint8)
    for byte in range(ASCII):
        letter = chr(byte)
        if letter.isalnum():
            kinds[byte] = DIGIT if letter.isdigit() else LETTER
            kinds[byte] |= HEXADECIMAL if letter in "0123456789abcdefABCDEF" else 0
    return kinds


@record
class Texts:
    """The texts that lines are searched for, without regard to case."""

    classes: U8  # [256]: the class of each byte
    automaton: Automaton


def texts_of(wanted: Mapping[int, Iterable[str]]) -> Texts:
    """Return the automaton of texts by their bits."""
    bits: dict[bytes, int] = defaultdict(int)
    for own, texts in wanted.items():
        for text in texts:
            bits[text.lower().encode("utf-8", "surrogateescape")] |= own
    classes = np.zeros(256, dtype=np.uint8)
    used = sorted({byte for text in bits for byte in text})
    for number, byte in enumerate(used, 1):
        classes[byte] = number
        if byte < ASCII and chr(byte).isalpha():
            classes[ord(chr(byte).upper())] = number
    words = (([int(classes[byte]) for byte in text], own) for text, own in sorted(bits.items()))
    return Texts(classes, automaton(words, len(used) + 1))


@record
class Block:
    """Lines of a stream that follow each other, one entry for each."""

    data: bytes
    ends: list[int]
    told: list[int]  # bits of the texts that it holds
    shapes: list[int]  # a key of its shape; of lines that hold no text nothing
    messages: list[int]  # a key of all that it says behind the time in brackets


@cache
def _words(vocabulary: frozenset[str]) -> Automaton:
    """Return the automaton of the words that stay in shapes."""
    letters = (([ord(one) - ord("a") for one in word], int(len(word) >= PREFIX)) for word in sorted(vocabulary))
    return automaton(letters, LETTERS)


def blocks(
    read: Callable[[int], bytes],
    vocabulary: Iterable[str],
    texts: Texts,
    *,
    digits_mean: int,
    longest: int,
    size: int = BLOCK_BYTES,
) -> Iterator[Block]:
    """Yield the rest of a stream in blocks of whole lines; lines of more than `longest` bytes are cut.

    `digits_mean` are the bits of lines with the time of a kernel or with a long hexadecimal.
    """
    known = _words(frozenset(vocabulary))
    found, kinds, most = texts.automaton, byte_kinds(), size + longest + 1
    ends, told = np.zeros(most, dtype=np.int64), np.zeros(most, dtype=np.uint8)
    shapes, messages = np.zeros(most, dtype=np.uint64), np.zeros(most, dtype=np.uint64)
    rest, piece = b"", b"\n"
    while piece:
        piece = read(size)
        data = rest + piece if piece or not rest else rest + b"\n"
        array = np.frombuffer(data, dtype=np.uint8)
        n = split_lines(array, len(array), longest, ends)
        find_texts(array, ends, n, texts.classes, found.following, found.holds, kinds, digits_mean, told)
        line_keys(array, ends, n, told, known.following, known.holds, known.words, kinds, shapes, messages)
        yield Block(data, ends[:n].tolist(), told[:n].tolist(), shapes[:n].tolist(), messages[:n].tolist())
        rest = data[int(ends[n - 1]) if n else 0 :]
