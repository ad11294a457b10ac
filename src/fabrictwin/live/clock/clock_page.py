"""The memory that programs read the twin's clock from (struct live_clock of preload/protocol.h)."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
from pathlib import Path

from fabrictwin.live import wire

TICK_PS = 250  # of the time stamp counter: 4 GHz
BOOT_NS = 1_000_000_000_000  # what CLOCK_MONOTONIC says at instant 0: programs take 0 for never
_BYTES = wire.CLOCK_NEWS + 8 * wire.CLOCK_SLOTS


class ClockPage:
    """A memory file with the instant, and how much news each process has had."""

    def __init__(self, epoch_ns: int) -> None:
        self.descriptor = os.memfd_create("fabrictwin-clock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, _BYTES)
        self._map = mmap.mmap(self.descriptor, _BYTES)
        # clients can map it, but not write to it or take it away
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self._map[: wire.CLOCK_HEAD.size] = wire.CLOCK_HEAD.pack(0, epoch_ns, BOOT_NS, TICK_PS)
        self._now = ctypes.c_uint64.from_buffer(self._map)
        self.news = (ctypes.c_uint64 * wire.CLOCK_SLOTS).from_buffer(self._map, wire.CLOCK_NEWS)

    def publish(self, now_ps: int) -> None:
        self._now.value = now_ps

    def close(self) -> None:
        del self._now, self.news
        self._map.close()
        os.close(self.descriptor)


_F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h, since Linux 5.1


def write_processors(root: Path) -> None:
    """The machine's /proc/cpuinfo with the counter's rate: programs turn ticks into seconds by it."""
    text = Path("/proc/cpuinfo").read_text(errors="replace")
    mhz = 1_000_000 / TICK_PS
    text = re.sub(r"^(cpu MHz\s*: ).*$", rf"\g<1>{mhz:.3f}", text, flags=re.M)
    text = re.sub(r"@ [\d.]+GHz", f"@ {mhz / 1000:.2f}GHz", text)
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(text)
