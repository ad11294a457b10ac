"""Large logs, read block by block: the same evidence as line by line, in bounded memory."""

from __future__ import annotations

import io
import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cluster_prints import coloured, prefixed

from fabrictwin.diagnosis.evidence import Evidence
from fabrictwin.diagnosis.readers import decisive_lines, line_router
from fabrictwin.diagnosis.readers.line_blocks import Block, automaton, blocks, texts_of
from fabrictwin.diagnosis.readers.line_shapes import LineShapes
from fabrictwin.diagnosis.readers.reading import read_paths

NOISE = (
    "step {n} of {name}: loss 2.{n}",
    "{name} sshd[{n}]: Connection closed by {name} port {n}",
    "2026-01-05 10:11:{s:02},123 WARNING {name} scheduler: no free slot, waiting",
    "[{n}.{n:06}] mlx5_core 0000:0{s}:00.0: poll_health:123: device's health compromised",
    "[{n}.{n:06}] pcieport 0000:0{s}:01.0: AER: Corrected error received: 0000:0{s}:00.0",
    "[{n}.{n:06}] usb 1-{s}: new device {name}",
    "{name}:{n}:{n} [{s}] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/{s}",
    "RuntimeError: {name}: Address already in use",
    "  8  2 float sum -1  12.5  0.00  0.00  0  12.4  0.00  0.00  0",
    "#  Rank  {s} Group  0 Pid {n} on {name} device  {s} [0x07] H100",
    "",
)


def noise(lines: int) -> list[str]:
    draw = random.Random(3)
    return [
        draw.choice(NOISE).format(
            name="".join(draw.choices("abcdefgh", k=6)), n=draw.randrange(9999), s=draw.randrange(4)
        )
        for _ in range(lines)
    ]


def facts(path: Path) -> dict[str, list[object]]:
    evidence: Evidence = read_paths([path])
    return {kind: [(f.subject, f.value, f.place, f.count) for f in evidence.of(kind)] for kind in evidence.kinds()}


@pytest.mark.parametrize("dress", [str, coloured, *(partial(prefixed, launcher=by) for by in ("mpirun", "slurm"))])
def test_a_log_read_by_blocks_leaves_what_it_leaves_line_by_line(tmp_path, monkeypatch, dress):
    path = tmp_path / "job.log"
    path.write_text(dress("\n".join(noise(6000)) + "\n"))
    alone = facts(path)
    monkeypatch.setattr(line_router, "LARGE", 1)
    assert facts(path) == alone
    assert sum(count for *_, count in alone["nccl.way"]) > 100
    assert {"line.known", "line.unknown", "aer"} <= alone.keys()


def scanned(text: bytes, vocabulary: list[str], texts: list[str], *, size: int = 64, longest: int = 4096) -> Block:
    """All blocks of a text, as one."""
    stream = io.BytesIO(text)
    found = list(blocks(stream.read, vocabulary, texts_of({1: texts}), digits_mean=2, longest=longest, size=size))
    begun, ends = 0, []
    for one in found:
        ends += [begun + end for end in one.ends]
        begun = ends[-1] if ends else begun
    return Block(
        b"",
        ends,
        [bits for one in found for bits in one.told],
        [key for one in found for key in one.shapes],
        [key for one in found for key in one.messages],
    )


PIECES = st.lists(
    st.sampled_from(
        ["port", "ports", "Port", "down", "up", "lamp", "xy", "a", "7", "0x7f3e", "c5", " ", ":", "_", "é"]
    ),
    max_size=9,
).map("".join)


@given(st.lists(PIECES, min_size=1, max_size=6))
def test_lines_have_one_key_where_they_have_one_shape(lines):
    shapes = LineShapes(["port.*(down|up)"])
    found = scanned("".join(f"{line}\n" for line in lines).encode(), sorted(shapes.vocabulary), ["\n"])
    assert len(found.shapes) == len(lines)
    for one, key in zip(lines, found.shapes, strict=True):
        for other, others in zip(lines, found.shapes, strict=True):
            assert (shapes.of(one) == shapes.of(other)) == (key == others), (one, other)


@given(st.lists(PIECES, min_size=1, max_size=6), st.sets(st.sampled_from(["rt", "port", "n x", "down", "7c"])))
def test_lines_are_told_by_the_texts_that_they_hold(lines, texts):
    found = scanned("".join(f"{line}\n" for line in lines).encode(), ["port"], sorted(texts))
    assert [bits & 1 for bits in found.told] == [any(t in line.lower() for t in texts) for line in lines]


def test_a_word_that_ends_inside_another_is_found_there():
    words = ["he", "she", "his", "hers"]
    found = automaton((([ord(c) - 97 for c in word], 1 << n) for n, word in enumerate(words)), 26)
    state, bits = 0, 0
    for letter in "ushers":
        state = found.following[state, ord(letter) - 97]
        bits |= int(found.holds[state])
    assert bits == 0b1011


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_blocks_end_at_lines_and_cut_those_that_are_too_long(size):
    text = b"one\n" + b"x" * 25 + b"\nlast without an end"
    ends = scanned(text, ["port"], ["one"], size=size, longest=10).ends
    assert ends == [4, 14, 24, 30, 40, 50]


def test_kernel_times_and_long_hexadecimals_are_told():
    lines = b"[  12.345678] eth0\n[12.34] eth0\nfe80:0000:0000:0000:0e42:a1ff:fe2b:1c44\n1.5 GB\n"
    assert scanned(lines, ["port"], ["nothing"]).told == [2, 0, 2, 0]


def test_a_message_is_one_whatever_time_it_has():
    lines = b"[ 12.345678] eth0: down\n[13.345678] eth0: down\n[13.345678] eth1: down\na[12] x\nb[12] x\n"
    first, second, other, a, b = scanned(lines, ["port"], ["\n"]).messages
    assert first == second != other
    assert a != b


def test_a_message_is_counted_and_asked_whom_it_is_about_when_no_others_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(decisive_lines, "MOST_KEPT", 50)
    monkeypatch.setattr(decisive_lines, "MOST_LOOKED", 150)
    letters = "abcdefghijklmnopqrstuvwxyz"
    others = [f"{letters[n % 26]} invalid {' '.join(letters[n // 26])} error {n % 7 * 'x '}" for n in range(400)]
    about = [f"host-{n}:10:11 [0] trainer.cc:1 failed to open the file of shard {n}" for n in range(6)]
    path = tmp_path / "job.log"
    path.write_text("\n".join([about[0], *others[:300], *about[1:], *others[300:], *about]) + "\n")
    alone = facts(path)
    monkeypatch.setattr(line_router, "LARGE", 1)
    assert facts(path) == alone
    hosts = [f"host-{n}" for n in range(6)]
    kept = [one for one in alone["line.known"] if "shard" in str(one[1])]
    assert [str(subject) for subject, *_ in kept] == hosts  # type: ignore[misc]


def test_a_cause_behind_more_unknown_errors_than_are_kept_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(decisive_lines, "MOST_KEPT", 50)
    letters = "abcdefghijklmnopqrstuvwxyz"
    others = [f"error {letters[n % 26]} invalid {' '.join(letters[n // 26])}" for n in range(300)]
    path = tmp_path / "job.log"
    path.write_text("\n".join([*others, "[rank3]: OSError: [Errno 122] Disk quota exceeded: '/data'"]) + "\n")
    monkeypatch.setattr(line_router, "LARGE", 1)
    known = facts(path)["line.known"]
    assert [one[1][0] for one in known] == ["disk-full"]  # type: ignore[index]
