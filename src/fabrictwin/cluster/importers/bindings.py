"""Import in one call, with bindings as they are typed on a command line: `luna-*=dgx-a100,HCA-1=mlx5_0`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec

_OPTIONS = {"host_cable": "--host-cable", "trunk_cable": "--trunk-cable"}


def import_ibnetdiscover(
    path: str | Path,
    *,
    bind: Sequence[str] = (),
    switch: Sequence[str] = (),
    host_cable: str = "3 m",
    trunk_cable: str = "20 m",
) -> Blueprint:
    """The blueprint of an `ibnetdiscover` file. Raises ConfigError."""
    cluster = {
        "ibnetdiscover": str(path),
        "bind": [_bind(text) for text in bind],
        "switches": [dict(zip(("match", "type"), _pair(text, "--switch"), strict=True)) for text in switch],
        "host_cable": host_cable,
        "trunk_cable": trunk_cable,
    }
    try:
        spec = read_spec({"schema": 1, "cluster": cluster})
        return build(spec.cluster, spec=spec)
    except ConfigError as error:
        raise ConfigError(error.message, file=error.file, line=error.line, key=_option(error.key)) from None


def _pair(text: str, option: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not equals or not left.strip() or not right.strip():
        example = "luna-*=dgx-a100" if option == "--bind" else "leaf-*=qm8700"
        raise ConfigError(f"got {text!r}, expected a glob and a catalog name, such as {example!r}", key=option)
    return left.strip(), right.strip()


def _bind(text: str) -> dict[str, Any]:
    first, *rest = text.split(",")
    match, host = _pair(first, "--bind")
    hcas: dict[str, str | int] = {}
    for part in rest:
        hca, nic = _pair(part, "--bind")
        hcas[hca] = nic if (number := whole_or_none(nic, most=10**8)) is None else number
    return {"match": match, "host": host, "hcas": hcas}


def _option(key: str | None) -> str | None:
    """The command-line option that a key of the section came from."""
    match = re.match(r"cluster\.(bind|switches|host_cable|trunk_cable)\b", key or "")
    if match is None:
        return None
    return {"bind": "--bind", "switches": "--switch"}.get(match[1]) or _OPTIONS[match[1]]
