"""Which NCCL the twin plays: versions as people write them, in order.

Constants, defaults, formats and even syntax differ between releases; everything that does is keyed by the first
release that has it. Releases from 2.18 on are known.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fabrictwin.base.errors import ConfigError

OLDEST = "2.18"
DEFAULT = "2.28.9"


class Version(NamedTuple):
    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def version(text: str) -> Version:
    """`2.21.5`, `2.21.5+cuda12.4`, `v2.21.5-1` or `2.21`. Raises ConfigError."""
    found = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+].{0,40})?", text.strip())
    if found is None:
        raise ConfigError(f"got {text[:40]!r}, expected an NCCL version such as {DEFAULT}", key="nccl version")
    result = Version(int(found[1]), int(found[2]), int(found[3] or 0))
    if result < version_of(OLDEST) or result.major != 2:
        raise ConfigError(f"got {text.strip()}, expected an NCCL 2 version from {OLDEST} on", key="nccl version")
    return result


def version_of(text: str) -> Version:
    """A version written in our own tables."""
    numbers = [int(part) for part in text.split(".")]
    return Version(numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 0)
