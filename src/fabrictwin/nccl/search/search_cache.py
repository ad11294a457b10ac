"""Channels that were searched before, kept in the cache folder beside compiled kernels.

A search depends on the host, the release and settings alone, and on the code that searches: the name of a file is
the digest of all of these. What cannot be read is searched again; where nothing can be written, nothing is kept.
Without the JIT (`NUMBA_DISABLE_JIT`) the cache is left alone, so that what runs is the code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path

from fabrictwin.kernel.jit.cache_folder import cache_base, cache_folder
from fabrictwin.nccl.search.graph_search import Channels
from fabrictwin.nccl.topology.graph_types import PathType, Pattern

_ROOM = Path(__file__).parents[1]
_SOURCES = (
    "constants",
    "topology/graph_types",
    "search/host_graphs",
    "topology/topology_paths",
    "search/search_order",
    "search/search_cache",
    "settings/release_rules",
    "search/graph_search",
    "topology/system",
)


def sources() -> list[Path]:
    """The code that searches."""
    kernels = sorted((_ROOM.parent / "kernel" / "nccl").glob("channel*.py"))
    return [*(_ROOM / f"{name}.py" for name in _SOURCES), *kernels]


# what comes of reading a file that was cut off or overwritten: JSON's own, infinite numbers, brackets without end
DAMAGED = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


@cache
def _code() -> str:
    """Digest of what searches."""
    digest = hashlib.sha256()
    for source in sources():
        digest.update(source.read_bytes())
    return digest.hexdigest()


@cache
def _folder(base: Path | None) -> Path:
    """The folder that channels are kept in; `base` is where caches lie now."""
    return cache_folder("channels")


def cached_channels(question: str, search: Callable[[], Channels]) -> Channels:
    """The answer to a question that says everything it depends on but the code."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return search()
    name = hashlib.sha256(f"{_code()} {question}".encode()).hexdigest()[:32]
    path = _folder(cache_base()) / f"{name}.json"
    with suppress(OSError, *DAMAGED):
        return _read(path.read_text(encoding="utf-8"))
    found = search()
    with suppress(OSError):
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(asdict(found)), encoding="utf-8")
        new.replace(path)
    return found


def _read(text: str) -> Channels:
    """Raises one of DAMAGED for what is no such file."""
    data = json.loads(text)
    data["pattern"] = Pattern(data["pattern"])
    data["type_intra"], data["type_inter"] = PathType(data["type_intra"]), PathType(data["type_inter"])
    data["intra"] = tuple(tuple(map(int, row)) for row in data["intra"])
    data["inter"] = tuple((int(one), int(other)) for one, other in data["inter"])
    return Channels(**data)
