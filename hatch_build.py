"""The platform wheel: with FABRICTWIN_PLATFORM_WHEEL=1 the libraries of live programs come compiled in it.

    FABRICTWIN_PLATFORM_WHEEL=1 pip wheel --no-deps .
    FABRICTWIN_PLATFORM_WHEEL=1 CC=aarch64-linux-gnu-gcc pip wheel --no-deps .

They need libc alone and no particular Python. The tag is the compiler's machine and the newest version of glibc
that the libraries ask for (PEP 600): built on an old distribution they run on more. Without the variable the wheel
is pure and compiles them on first use.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASKED = "FABRICTWIN_PLATFORM_WHEEL"
_LIVE = Path("src/fabrictwin/live")


def _compiling(root: Path) -> ModuleType:
    """Return `fabrictwin.live.compiling`, of which the package's dependencies need not be there."""
    spec = importlib.util.spec_from_file_location("compiling", root / _LIVE / "compiling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def platform_tag(compiler: str, libraries: list[Path]) -> str:
    """Return the tag of wheels with these libraries, such as py3-none-manylinux_2_34_x86_64."""
    triple = subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True, check=True).stdout
    versions = [int(found) for path in libraries for found in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())]
    return f"py3-none-manylinux_2_{max(versions)}_{triple.partition('-')[0]}"


class LiveLibraries(BuildHookInterface[Any]):
    """Compiles the libraries into a wheel that is to have them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get(ASKED) != "1" or self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        compiling = _compiling(root)
        compiler = compiling.compiler()
        if compiler is None:
            raise RuntimeError(f"{ASKED}=1 needs a C compiler; CC names one")
        self._folder = tempfile.TemporaryDirectory()
        made = []
        for name in compiling.LIBRARIES:
            path = Path(self._folder.name) / compiling.file_name(name)
            complaint = compiling.compile_library(compiler, root / _LIVE / name, path)
            if complaint:
                raise RuntimeError(f"{compiler} could not compile {name}: {complaint}")
            build_data["force_include"][str(path)] = f"fabrictwin/live/{name}/{path.name}"
            made.append(path)
        build_data["pure_python"] = False
        build_data["tag"] = platform_tag(compiler, made)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()
