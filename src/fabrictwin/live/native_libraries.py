"""The two C libraries of live programs: found beside the sources where a wheel brought them, else compiled once.

`preload` goes into programs, `datapath` into the server. What is compiled is kept in the cache, whose folders only
the user could have written in, under a name that carries a digest of the sources and the compiler's command.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.interrupt import unfinished
from fabrictwin.kernel.jit.cache_folder import cache_folder

_HERE = Path(__file__).parent
_FLAGS = ("-O2", "-fPIC", "-shared", "-Wall")
COMPILERS = ("cc", "gcc", "clang")
LIBRARIES = ("preload", "datapath")


def library(name: str) -> Path:
    """The shared object of one of LIBRARIES, compiled now if need be. Raises ConfigError."""
    brought = _HERE / name / f"libfabrictwin-{name}.so"
    if brought.is_file():
        return brought
    compiler = _compiler()
    sources = sorted((_HERE / name).glob("*.[ch]"))
    digest = hashlib.sha256(repr((compiler, _FLAGS)).encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    kept = cache_folder("live") / f"libfabrictwin-{name}-{digest.hexdigest()[:16]}.so"
    if not kept.is_file():
        _compile(compiler, [source for source in sources if source.suffix == ".c"], kept)
    return kept


def _compiler() -> str:
    named = os.environ.get("CC")
    for candidate in (named,) if named else COMPILERS:
        found = shutil.which(candidate)
        if found is not None:
            return found
    raise ConfigError(
        f"got no C compiler ({named or ', '.join(COMPILERS)}), expected one: programs run on the twin"
        " through a small library that is compiled on first use (Debian: apt-get install gcc libc6-dev;"
        " Fedora: dnf install gcc)"
    )


def _compile(compiler: str, sources: list[Path], to: Path) -> None:
    """Compile beside the place and move there whole, so that two at a time do no harm."""
    with tempfile.TemporaryDirectory(dir=to.parent) as folder, unfinished(Path(folder)):
        made = Path(folder) / to.name
        command = [compiler, *_FLAGS, "-o", str(made), *map(str, sources), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
            raise ConfigError(f"{compiler} could not compile the library of live programs: {first}")
        made.replace(to)
