"""What detection and search do differently from NCCL release to release.

Read in the public sources of 2.18.3 to 2.30.7 (src/graph, src/transport/nvls.cc, src/include/device.h).
"""

from __future__ import annotations

from dataclasses import dataclass

# candidate speeds of a channel in GB/s, tried downward: before Hopper, Hopper, Blackwell; newest release last
_INTRA = (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
_INTER = (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12)
_SLOW = (6.0, 3.0, 2.4, 1.2, 0.24, 0.12)
_HOPPER_INTRA = {
    18: (60.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 6.0, 3.0),
    19: (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 6.0, 3.0),
    21: (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
}
_HOPPER_INTER = {
    18: (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 20.0, 17.5, 15.0, 12.0, *_SLOW),
    19: (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, *_SLOW),
}
_BLACKWELL_INTRA = {
    25: (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0),
    27: (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
    29: (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
}
_BLACKWELL_INTER = {
    25: _HOPPER_INTER[19],
    27: (96.0, 48.0, 45.1, *_HOPPER_INTER[19][2:]),
    30: (96.0, 86.0, 80.0, 48.0, 45.1, *_HOPPER_INTER[19][2:]),
}

Release = tuple[int, int]


@dataclass(frozen=True)
class Rules:
    """One release's ways."""

    release: Release

    def since(self, minor: int) -> bool:
        """Whether the release is 2.`minor` or later."""
        return self.release >= (2, minor)

    @property
    def max_channels(self) -> int:
        return 64 if self.since(25) else 32

    @property
    def nvls_needs(self) -> int:
        """How many GPUs an NVLink domain must have for NVLink SHARP."""
        return 2 if self.since(29) else 3

    def speeds(self, capability: int, *, inter: bool) -> tuple[float, ...]:
        """Candidate speeds for GPUs of a compute capability."""
        if capability >= 100 and self.since(25):
            return self._newest(_BLACKWELL_INTER if inter else _BLACKWELL_INTRA)
        if capability >= 90:
            return self._newest(_HOPPER_INTER if inter else _HOPPER_INTRA)
        return _INTER if inter else _INTRA

    def _newest(self, tables: dict[int, tuple[float, ...]]) -> tuple[float, ...]:
        return tables[max(minor for minor in tables if self.since(minor))]
