"""Programs that a preloaded library does not reach, recognised before they run.

A dynamic loader that honours LD_PRELOAD is what the library comes in by: a static executable has none, one that
changes its user ignores the variable (ld.so(8), secure execution), and Go's runtime calls the kernel itself.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
from pathlib import Path

_PT_INTERP, _SECTION_HEADER = 3, struct.Struct("<IIQQQQIIQQ")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}
_INTERPRETERS = 5  # scripts whose interpreter is a script, as many as Linux follows (fs/exec.c)
_MOST_BYTES = 1 << 62  # that a file offset may be
_CAPABILITY = "security.capability"


def find_program(name: str) -> Path | None:
    """The file that a command names, as a shell finds it."""
    found = shutil.which(name)
    return None if found is None else Path(found)


def why_not(program: Path) -> str:
    """Return the reason why a program cannot run on the twin, in words; empty where none is known."""
    for _ in range(_INTERPRETERS):
        with program.open("rb") as file:
            head = file.read(4096)
        if not head.startswith(b"#!"):
            break
        words = head[2:].split(b"\n", 1)[0].split()
        interpreter = Path(os.fsdecode(words[0])) if words else program
        if interpreter == program or not os.path.isfile(interpreter):
            return ""
        program = interpreter
    if not head.startswith(b"\x7fELF"):
        return ""
    try:
        return _why_not_elf(program, head)
    except (struct.error, IndexError):
        return "is cut off: its headers are no whole executable's"


def _why_not_elf(program: Path, head: bytes) -> str:
    """Raises struct.error or IndexError for a header that is cut off."""
    if head[4] != 2 or head[5] != 1:
        return "is not a 64-bit little-endian executable"
    machine = struct.unpack_from("<H", head, 18)[0]
    if _MACHINES.get(machine, os.uname().machine) != os.uname().machine:
        return f"is built for {_MACHINES[machine]}, this machine is {os.uname().machine}"
    mode = program.stat().st_mode
    if mode & stat.S_ISUID or mode & stat.S_ISGID or _has_capabilities(program):
        return "changes its user or its capabilities when it starts, so the loader ignores LD_PRELOAD"
    offset, _, _, _, size, count = struct.unpack_from("<QQIHHH", head, 32)
    kinds = [
        _PROGRAM_HEADER.unpack_from(head, offset + i * size)[0]
        for i in range(count)
        if offset + (i + 1) * size <= len(head)
    ]
    if any(name in (b".go.buildinfo", b".note.go.buildid") for name in _section_names(program)):
        return "is a Go program, which calls the kernel itself"
    return "" if _PT_INTERP in kinds else "is statically linked, without a loader"


def _has_capabilities(program: Path) -> bool:
    try:
        return bool(os.getxattr(program, _CAPABILITY))
    except OSError:
        return False


def _section_names(program: Path) -> list[bytes]:
    """Names of an executable's sections; none where it was stripped of them."""
    with program.open("rb") as file:
        header = file.read(64)
        offset = struct.unpack_from("<Q", header, 40)[0]
        size, count, names_at = struct.unpack_from("<HHH", header, 58)
        if not 0 < offset <= _MOST_BYTES or size != _SECTION_HEADER.size or names_at >= count:
            return []
        file.seek(offset)
        table = file.read(size * count)
        sections = [_SECTION_HEADER.unpack_from(table, i * size) for i in range(len(table) // size)]
        if names_at >= len(sections):
            return []
        if sections[names_at][4] > _MOST_BYTES:
            return []
        file.seek(sections[names_at][4])
        text = file.read(min(sections[names_at][5], 1 << 20))
        return [text[section[0] :].split(b"\0", 1)[0] for section in sections if section[0] < len(text)]
