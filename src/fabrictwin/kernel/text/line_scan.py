"""Compiled: lines of a block of bytes, which of many texts each holds, and keys of what each says.

Texts are looked for by an automaton of Aho and Corasick ("Efficient string matching", Communications of the ACM
18, 1975) whose states have a full row for every class of bytes: one look-up a byte, however many texts there are.
The shape of a line is what stays of it without its numbers and names. Keys are FNV-1a of 64 bits.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.jit.decorators import entry, helper

NEWLINE, SPACE, OPENED, CLOSED, COLON, DOT = 10, 32, 91, 93, 58, 46
ZERO, NAME = np.uint64(48), np.uint64(119)  # what a number and a name come to
# a line may begin a kernel's log by the time in brackets, and a table of GIDs by a long run of hexadecimals
MICROSECONDS, LONG_HEXADECIMAL = 6, 30
OTHER, LETTER, DIGIT = 0, 1, 2
HEXADECIMAL = 4  # beside LETTER or DIGIT
_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)


@entry
def split_lines(block, size, longest, ends):
    """Write the ends of lines of at most `longest` bytes to `ends`, each behind its newline, and return how many.

    A line that is longer is cut. What stands after the last end waits for the next block.
    """
    found, begin = 0, 0
    for i in range(size):
        if block[i] == NEWLINE or i + 1 - begin == longest:
            ends[found] = i + 1
            found += 1
            begin = i + 1
    return found


@entry
def find_texts(block, ends, count, classes, following, holds, kinds, digits_mean, told):
    """Write to `told` of each line the bits of all texts that it holds.

    `classes` is the class of each byte, `following` the next state by state and class, `holds` of a state the bits
    of the texts that end there, `kinds` of a byte OTHER, LETTER or DIGIT, with HEXADECIMAL. Lines with the time of
    a kernel or with a long hexadecimal have the bits of `digits_mean`, too.
    """
    begin = 0
    for line in range(count):
        state, digits, run, bits = 0, 0, 0, 0
        for i in range(begin, ends[line]):
            byte = block[i]
            state = following[state, classes[byte]]
            bits |= holds[state]
            kind = kinds[byte]
            if kind & HEXADECIMAL:
                digits = digits + 1 if kind & 3 == DIGIT else 0
                run += 1
                if run >= LONG_HEXADECIMAL:
                    bits |= digits_mean
            else:
                if byte == CLOSED and digits >= MICROSECONDS:
                    bits |= digits_mean
                digits = 0
                run = run + 1 if byte == COLON else 0
        told[line] = bits
        begin = ends[line]


@helper
def _mixed(key, value):
    return (key ^ value) * _PRIME


@helper
def _after_word(key, run, length, is_known, is_number):
    """Key after a run of letters that a number follows, or none: itself where it is known, else a name."""
    if is_known and length > 1:
        return _mixed(key, run)
    if is_number or length == 0:
        return key
    return _mixed(key, run if length == 1 else NAME)


@entry
def line_keys(block, ends, count, told, following, holds, words, kinds, shapes, messages):
    """Write keys of lines that are `told`: of their shapes, and of all that they say behind a time in brackets.

    `following` is the next state by state and letter of an automaton of the known words, `holds` is not 0 for a
    state where a word ends that is known within others, too, `words` is the length of the word that a state is.
    """
    begin = 0
    for line in range(count):
        if told[line]:
            shapes[line] = _shape_key(block, begin, ends[line], following, holds, words, kinds)
            messages[line] = _message_key(block, begin, ends[line], kinds)
        begin = ends[line]


@helper
def _shape_key(block, begin, end, following, holds, words, kinds):
    key, run, state, length = _BASIS, _BASIS, 0, 0
    is_known, in_number = False, False
    for i in range(begin, end):
        byte = block[i]
        kind = kinds[byte] & 3
        if kind == OTHER:
            key = _after_word(key, run, length, is_known or words[state] == length, False)
            key = _mixed(key, np.uint64(byte))
            run, state, length, is_known, in_number = _BASIS, 0, 0, False, False
        elif in_number:
            continue
        elif kind == DIGIT:
            key = _after_word(key, run, length, is_known or words[state] == length, True)
            key = _mixed(key, ZERO)
            run, state, length, is_known, in_number = _BASIS, 0, 0, False, True
        else:
            state = following[state, (byte | SPACE) - 97]
            is_known = is_known or holds[state] != 0
            length += 1
            run = _mixed(run, np.uint64(byte))
    return _after_word(key, run, length, is_known or words[state] == length, False)


@helper
def _message_key(block, begin, end, kinds):
    """Key of a line behind brackets that hold a time: the first of the line, or any with microseconds."""
    key, digits, is_number = _BASIS, 0, False
    is_first = block[begin] == OPENED
    for i in range(begin, end):
        byte = block[i]
        key = _mixed(key, np.uint64(byte))
        if kinds[byte] & 3 == DIGIT:
            digits += 1
        elif byte == OPENED:
            digits, is_number = 0, True
        elif byte == CLOSED:
            if is_first or (is_number and digits >= MICROSECONDS):
                key = _BASIS
            digits, is_number, is_first = 0, False, False
        else:
            is_number = is_number and byte in (DOT, SPACE)
            digits = 0
    return key
