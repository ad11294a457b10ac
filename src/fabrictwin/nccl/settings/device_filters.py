"""Lists of devices as NCCL_IB_HCA and NCCL_SOCKET_IFNAME write them.

`mlx5_0:1,mlx5_2` takes devices whose name starts so (and that port), `=mlx5_1` only that very name, `^mlx5_3`
everything but what starts so, `^=mlx5_3` everything but that one (`NCCL_IB_HCA` in NCCL's user guide). Since
2.29 an entry may go on with its rail and its plane: `mlx5_0:1:0:2`.
"""

from __future__ import annotations

import re

from fabrictwin.base.records import record


@record
class Entry:
    name: str
    port: int | None = None
    rail: int | None = None
    plane: int | None = None


@record
class DeviceFilter:
    """Which devices a list lets through."""

    text: str
    exclude: bool
    exact: bool
    entries: tuple[Entry, ...]

    def entry(self, name: str, port: int | None = None) -> Entry | None:
        """The first entry that a device (and its port, where it has one) fits."""
        for entry in self.entries:
            same = name == entry.name if self.exact else name.startswith(entry.name)
            if same and (entry.port is None or port is None or entry.port == port):
                return entry
        return None

    def allows(self, name: str, port: int | None = None) -> bool:
        # an empty list matches everything, so `^` alone lets nothing through
        matched = not self.entries or self.entry(name, port) is not None
        return matched != self.exclude


def device_filter(text: str) -> DeviceFilter:
    """Every text is a list; an entry without a name is skipped, a port that is no number counts as 0."""
    rest = text
    exclude = rest.startswith("^")
    rest = rest[exclude:]
    exact = rest.startswith("=")
    rest = rest[exact:]
    entries = []
    for part in rest.split(","):
        name, *numbers = part.split(":")
        if name:
            entries.append(Entry(name, *(_number(number) for number in numbers[:3])))
    return DeviceFilter(text, exclude, exact, tuple(entries))


def _number(text: str) -> int | None:
    if not text:
        return None
    found = re.match(r"\s*[-+]?\d{1,9}", text)
    value = int(found[0]) if found else 0
    return None if value == -1 else value
