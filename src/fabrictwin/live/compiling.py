"""How the C libraries of live programs are compiled: on first use, or into a wheel. Needs Python alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FLAGS = ("-O2", "-fPIC", "-shared", "-Wall")
COMPILERS = ("cc", "gcc", "clang")
LIBRARIES = ("preload", "datapath")


def compiler() -> str | None:
    """Return the path of the C compiler: the one that CC names, or the first of COMPILERS; None: there is none."""
    named = os.environ.get("CC")
    found = (shutil.which(candidate) for candidate in ((named,) if named else COMPILERS))
    return next((path for path in found if path is not None), None)


def file_name(name: str) -> str:
    return f"libfabrictwin-{name}.so"


def compile_library(compiler: str, folder: Path, to: Path) -> str:
    """Compile a folder's sources into a shared object. Returns the first complaint; empty where it was made."""
    sources = sorted(folder.glob("*.c"))
    command = [compiler, *FLAGS, "-o", str(to), *map(str, sources), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    return next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200]) or "it failed"
