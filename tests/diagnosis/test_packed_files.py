"""Logs as they lie about: rotated and compressed, in archives, in UTF-16, cut off."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictwin.diagnosis.diagnose import diagnose
from fabrictwin.diagnosis.readers import packed_files
from fabrictwin.diagnosis.readers.packed_files import unpacked

LOST = "[12.1] NVRM: Xid (PCI:0000:3a:00): 79, pid=1, GPU has fallen off the bus.\n" * 50
DATA = LOST.encode()


def tar(name: str, data: bytes, mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zipped(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return out.getvalue()


PACKED = {
    "gzip": gzip.compress(DATA),
    "bzip2": bz2.compress(DATA),
    "xz": lzma.compress(DATA),
    "UTF-16": LOST.encode("utf-16"),
    "tar": tar("host-1/dmesg.txt", DATA),
    "tar.gz": tar("host-1/dmesg.txt", DATA, "w:gz"),
    "tar.xz": tar("host-1/dmesg.txt", DATA, "w:xz"),
    "zip": zipped("host-1/dmesg.txt", DATA),
    "rotated logs in a report": tar("host-1/dmesg.1.gz", gzip.compress(DATA), "w:xz"),
    "a zip in a tar": tar("a.zip", zipped("host-1/dmesg.txt", DATA)),
}


def inside(data: bytes) -> list[tuple[str, bytes, str, str]]:
    """Names, contents, hosts and problems of what is in a file."""
    found = unpacked(io.BufferedReader(io.BytesIO(data)), "f")  # type: ignore[arg-type]
    return [(one.name, one.stream.read() if one.stream else b"", one.host, one.problem()) for one in found]


@pytest.mark.parametrize("way", PACKED)
def test_what_is_packed_is_read_as_it_was(tmp_path: Path, way: str) -> None:
    ((name, data, host, problem),) = inside(PACKED[way])
    assert data.decode() == LOST
    assert (host, problem) == ("host-1" if "host-1" in name else "", "")
    file = tmp_path / "whatever.log"
    file.write_bytes(PACKED[way])
    found = diagnose([file], twin=False)
    assert found.findings[0].id == "gpu-lost"
    assert found.evidence.unread == []


@pytest.mark.parametrize("way", ["gzip", "tar.gz", "tar"])
def test_what_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path, way: str) -> None:
    lines = "".join(f"[12.{n:06d}] mlx5_core 0000:3b:00.0 eth0: Link up {n * 7919 % 10007}\n" for n in range(9000))
    long = (LOST + lines).encode()
    packed = gzip.compress(long) if way == "gzip" else tar("dmesg.txt", long, "w:gz" if way == "tar.gz" else "w")
    file = tmp_path / "cut"
    file.write_bytes(packed[: len(packed) // 2])
    found = diagnose([file], twin=False)
    assert found.findings[0].id == "gpu-lost"
    assert any("cut off" in why for _, why in found.evidence.unread)


def test_what_cannot_be_unpacked_says_why() -> None:
    assert inside(b"\x28\xb5\x2f\xfd" + DATA)[0][3] == "is compressed by zstd: unzstd it first"
    deep = DATA
    for _ in range(6):
        deep = gzip.compress(deep)
    ((_, data, _, problem),) = inside(deep)
    assert (data, problem) == (b"", "is packed more than 3 times")


def test_a_small_file_that_expands_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_files._Budget, "left", 5 << 20)
    ((_, data, _, problem),) = inside(gzip.compress(bytes(64 << 20)))
    assert len(data) <= 6 << 20
    assert "of which the rest is left" in problem
    two = inside(gzip.compress(tar("a", gzip.compress(bytes(64 << 20)))))
    assert sum(len(data) for _, data, _, _ in two) <= 6 << 20


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PACKED)), st.integers(0, 2000), st.integers(1, 255), st.integers(0, 3000))
def test_spoilt_files_raise_nothing(way: str, at: int, flip: int, length: int) -> None:
    spoilt = bytearray(PACKED[way])
    spoilt[at % len(spoilt)] ^= flip
    found = inside(bytes(spoilt[: max(length, 1)]))
    assert all(data or problem or len(found) == 1 for _, data, _, problem in found)
    if way in ("gzip", "bzip2", "xz", "zip"):  # these hold sums of what is in them
        told = {data for _, data, _, problem in found if not problem}
        assert told <= {DATA, bytes(spoilt[: max(length, 1)])}  # the latter where no magic is left


def test_an_encrypted_member_is_named() -> None:
    locked = bytearray(PACKED["zip"])
    locked[locked.rindex(b"PK\x01\x02") + 8] |= packed_files.ENCRYPTED
    ((name, data, _, problem),) = inside(bytes(locked))
    assert (name, data, problem) == ("f:host-1/dmesg.txt", b"", "is encrypted")
