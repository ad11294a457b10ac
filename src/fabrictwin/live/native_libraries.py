"""The two C libraries of live programs: found beside the sources where a wheel brought them, else compiled once.

`preload` goes into programs, `datapath` into the server. What is compiled is kept in the cache, whose folders only
the user could have written in, under a name that carries a digest of the sources and the compiler's command.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.process.interrupt import unfinished
from fabrictwin.kernel.jit.cache_folder import cache_folder
from fabrictwin.live import compiling
from fabrictwin.live.compiling import COMPILERS as COMPILERS
from fabrictwin.live.compiling import FLAGS
from fabrictwin.live.compiling import LIBRARIES as LIBRARIES

_HERE = Path(__file__).parent


def library(name: str) -> Path:
    """The shared object of one of LIBRARIES, compiled now if need be. Raises ConfigError."""
    brought = _HERE / name / compiling.file_name(name)
    if brought.is_file():
        return brought
    compiler = _compiler()
    sources = sorted((_HERE / name).glob("*.[ch]"))
    digest = hashlib.sha256(repr((compiler, FLAGS)).encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    kept = cache_folder("live") / f"libfabrictwin-{name}-{digest.hexdigest()[:16]}.so"
    if not kept.is_file():
        _compile(compiler, _HERE / name, kept)
    return kept


def _compiler() -> str:
    found = compiling.compiler()
    if found is not None:
        return found
    looked_for = os.environ.get("CC") or ", ".join(COMPILERS)
    raise ConfigError(
        f"got no C compiler ({looked_for}), expected one: programs run on the twin"
        " through a small library that is compiled on first use (Debian: apt-get install gcc libc6-dev;"
        " Fedora: dnf install gcc)"
    )


def _compile(compiler: str, sources: Path, to: Path) -> None:
    """Compile beside the place and move there whole, so that two at a time do no harm."""
    with tempfile.TemporaryDirectory(dir=to.parent) as folder, unfinished(Path(folder)):
        made = Path(folder) / to.name
        complaint = compiling.compile_library(compiler, sources, made)
        if complaint:
            raise ConfigError(f"{compiler} could not compile the library of live programs: {complaint}")
        made.replace(to)
