"""Files that were dropped in: kept by their content as long as there is room, told apart by their formats."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Literal

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.records import record

Kind = Literal["spec", "ibnetdiscover", "nccl-topology", "model", "log"]

MOST_FILE_BYTES = 64 * 2**20
MOST_BYTES = 512 * 2**20
MOST_FILES = 1_000

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+ -]{0,120}")


@record
class Upload:
    """One file."""

    id: str
    name: str
    size: int
    kind: Kind
    path: Path


def checked_name(name: str) -> str:
    """The name of a file, without a folder. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"got {quoted(name)}, expected the name of a file: letters, digits, and . _ + - within it", key="name"
        )
    return name


def recognised(head: bytes, name: str) -> Kind:
    """The kind of a file by its content; a log where it is none of the others."""
    text = head.decode("utf-8", errors="replace")
    if re.search(r"^(?:vendid=0x|caguid=0x|switchguid=0x|Switch\s+\d+ \"S-)", text, re.MULTILINE):
        return "ibnetdiscover"
    if text.lstrip().startswith("<") and re.search(r"<(?:system|cpu)\b", text):
        return "nccl-topology"
    if text.lstrip().startswith("{") and re.search(r'"(?:hidden_size|n_embd|d_model|architectures)"', text):
        return "model"
    if re.search(r"^schema:\s*\d", text, re.MULTILINE) or re.search(r"^(?:cluster|workload):", text, re.MULTILINE):
        return "spec"
    if name.endswith((".yaml", ".yml")):
        return "spec"
    return "log"


class Uploads:
    """Files in a folder of their own. Methods may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept: OrderedDict[str, Upload] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, name: str, content: bytes) -> Upload:
        """Keep a file; the same one again is the same. Raises ConfigError."""
        checked_name(name)
        digest = hashlib.sha256(name.encode() + b"\0" + content).hexdigest()[:32]
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
                return self._kept[digest]
            path = self._root / digest
            path.write_bytes(content)
            kept = Upload(digest, name, len(content), recognised(content[: 2**20], name), path)
            self._kept[digest] = kept
            while len(self._kept) > MOST_FILES or sum(one.size for one in self._kept.values()) > MOST_BYTES:
                self._kept.popitem(last=False)[1].path.unlink(missing_ok=True)
        return kept

    def path(self, upload: str) -> Path:
        """The path at which a file is kept. Raises ConfigError where it is not (any more)."""
        with self._lock:
            if upload not in self._kept:
                raise ConfigError(
                    f"got {quoted(upload)}, which is not kept (any more): upload the file", key="files"
                )
            self._kept.move_to_end(upload)
            return self._kept[upload].path
