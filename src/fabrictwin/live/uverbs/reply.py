"""What a command answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Reply:
    """Bytes of the response; perhaps a descriptor, and where in them its number belongs."""

    data: bytes = b""
    descriptor: int = -1
    descriptor_at: int = -1
    after: Callable[[], None] | None = None  # to be done once it is sent
