"""What a target of `fuzz.py` is, and how one is made of what reads files or text.

A call may refuse its input with an error of fabrictwin's own; readers of single values, which others wrap, with
ValueError. State that inputs change (a subnet, a transfer) is made anew after FRESH of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FRESH = 500
_JOB = """schema: 1
name: small
cluster:
  hosts: {type: HOST, count: 2}
  network: {technology: infiniband, topology: {kind: fat-tree}, switch: SWITCH}
workload: {training: {model: {hidden_size: 512, num_hidden_layers: 2, num_attention_heads: 8, vocab_size: 1000,
  intermediate_size: 2048}, parallel: {tp: 2}, micro_batch_size: 1, global_batch: 16, sequence: 512, precision: bf16}}
"""


@dataclass(frozen=True)
class Target:
    """Samples to begin with, what reads them, and which errors are a proper answer beside fabrictwin's own."""

    samples: list[bytes]
    read: Callable[[bytes], Any]
    refusals: tuple[type[BaseException], ...] = ()
    close: Callable[[], None] = lambda: None  # ends what it started


@cache
def root() -> Path:
    """Make the folder of a run; processes that are forked afterwards share it."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="fabrictwin-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))


def folder() -> Path:
    """Return this process's own folder; whoever forked it removes it."""
    own = root() / str(os.getpid())
    own.mkdir(exist_ok=True)
    return own


def job(host: str, switch: str) -> str:
    """Return a spec of a small job on two hosts."""
    return _JOB.replace("HOST", host).replace("SWITCH", switch)


def of_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """Make a reader of a path one of bytes."""

    def of_bytes(data: bytes) -> Any:
        path = folder() / f"{os.getpid()}-{name}"
        path.write_bytes(data)
        return read(path)

    return of_bytes


def files(*patterns: str) -> list[bytes]:
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    if not found:
        raise FileNotFoundError(patterns[0])
    return [path.read_bytes() for path in found]


def of_text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: read(data.decode("utf-8", "replace"))
