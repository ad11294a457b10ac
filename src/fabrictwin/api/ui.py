"""The page and its HTTP interface, from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from fabrictwin.base.errors import ConfigError


def _check() -> None:
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"needs {' and '.join(missing)}: pip install 'fabrictwin[web]'", key="ui")


def ui(
    spec: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    names: Sequence[str] = (),
    token: str | None = None,
    workers: int | None = None,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve the page until interrupted.

    `spec` is a file or a folder of such, to open with. On a `host` that others reach, they need the `token`
    (one that nobody can guess if it is None) and call the machine by an address or one of `names`. `workers`
    are processes for runs. `ready` is told the address of the page. Raises ConfigError.
    """
    _check()
    from fabrictwin.runs.workers import processors
    from fabrictwin.web.server import Address, serve
    from fabrictwin.web.service import Setting

    path = None if spec is None else Path(spec)
    if path is not None:
        _readable(path)
    setting = Setting(spec=path, workers=workers or max(1, processors() - 1))
    serve(setting, Address(host, port, tuple(names), token), ready)


def _readable(path: Path) -> None:
    """Raise ConfigError for what is neither a file nor a folder that can be read."""
    if not path.exists():
        raise ConfigError("no such file", file=path)
    if not (path.is_file() or path.is_dir()):
        raise ConfigError("expected a spec, or a folder of specs", file=path)
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise ConfigError("cannot be read: Permission denied", file=path)


def openapi_json() -> str:
    """The OpenAPI document of the interface as text. Raises ConfigError."""
    _check()
    from fabrictwin.web.interface import openapi
    from fabrictwin.web.operations import operations

    return json.dumps(openapi(operations(None)), indent=2, ensure_ascii=False) + "\n"
