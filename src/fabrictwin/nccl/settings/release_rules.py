"""Rules of detection and search that differ from NCCL release to release.

Read in the public sources of 2.18.3 to 2.30.7 (src/graph, src/transport/nvls.cc, src/include/device.h).
"""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.nccl.constants import (
    BLACKWELL_INTER,
    BLACKWELL_INTRA,
    HOPPER_INTER,
    HOPPER_INTRA,
    SPEEDS_INTER,
    SPEEDS_INTRA,
)

Release = tuple[int, int]


@record
class Rules:
    """The rules of one release."""

    release: Release

    def since(self, minor: int) -> bool:
        """Return true if the release is 2.`minor` or later."""
        return self.release >= (2, minor)

    @property
    def max_channels(self) -> int:
        return 64 if self.since(25) else 32

    @property
    def nvls_needs(self) -> int:
        """Number of GPUs that an NVLink domain must have for NVLink SHARP."""
        return 2 if self.since(29) else 3

    def speeds(self, capability: int, *, inter: bool) -> tuple[float, ...]:
        """Candidate speeds for GPUs of a compute capability."""
        if capability >= 100 and self.since(25):
            return self._newest(BLACKWELL_INTER if inter else BLACKWELL_INTRA)
        if capability >= 90:
            return self._newest(HOPPER_INTER if inter else HOPPER_INTRA)
        return SPEEDS_INTER if inter else SPEEDS_INTRA

    def _newest(self, tables: dict[int, tuple[float, ...]]) -> tuple[float, ...]:
        return tables[max(minor for minor in tables if self.since(minor))]
