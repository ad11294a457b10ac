"""NCCL's log: which lines are printed, with which prefix, and where to.

`NCCL_DEBUG` sets how much, `NCCL_DEBUG_SUBSYS` of what, `NCCL_DEBUG_FILE` where (`%h` host, `%p` process; one file
for each process). A line starts `host:process:thread [device] NCCL INFO `, as in src/debug.cc; process and thread
numbers, pointers and bus numbers are made up, the same every time. Left out: the time that releases from 2.26 on
print before warnings.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TextIO

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.textfile import open_to_write
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.settings.settings import Settings

LEVELS = {"VERSION": 1, "WARN": 2, "INFO": 3, "ABORT": 4, "TRACE": 5}
FIRST_PROCESS = 4000


@record
class Line:
    """One line of one rank. `subsystems` empty: always. `place` is the source file that a warning names."""

    rank: int
    text: str
    subsystems: tuple[str, ...] = ()
    level: str = "INFO"
    place: str = ""


@record
class Processes:
    """Which process runs a rank: `per_process` ranks of a host share one."""

    communicator: Communicator
    per_process: int = 1

    def number(self, rank: int) -> int:
        """Its process on its host, from 0."""
        return int(self.communicator.placement.local_rank[rank]) // self.per_process

    def pid(self, rank: int) -> int:
        return FIRST_PROCESS + 100 * self.number(rank)

    def tid(self, rank: int) -> int:
        """The thread that initialises it: each rank has one beside its process's own."""
        return self.pid(rank) + 1 + int(self.communicator.placement.local_rank[rank]) % self.per_process

    def device(self, rank: int) -> int:
        """CUDA's number of its GPU."""
        node = int(self.communicator.placement.rank_node[rank])
        return int(self.communicator.twin.fabric.gpu_local[self._gpu(node)])

    def _gpu(self, node: int) -> int:
        import numpy as np

        return int(np.searchsorted(self.communicator.twin.fabric.gpu_node, node))

    def host(self, rank: int) -> str:
        node = int(self.communicator.placement.rank_node[rank])
        fabric = self.communicator.twin.fabric
        return str(fabric.host_names[fabric.node_host[node]])

    def first_of_process(self, rank: int) -> bool:
        """Return true of the rank that its process starts with."""
        return int(self.communicator.placement.local_rank[rank]) % self.per_process == 0


class Log:
    """The place that lines go to. Files are opened when their first line comes."""

    def __init__(self, settings: Settings, processes: Processes, out: TextIO | None = None) -> None:
        self.settings, self.processes = settings, processes
        self.out = sys.stdout if out is None else out
        self._files: dict[str, TextIO] = {}
        self._closing = ExitStack()

    @property
    def level(self) -> int:
        return LEVELS.get(self.settings.debug or "", 0)

    def prints(self, level: str, subsystems: tuple[str, ...] = ()) -> bool:
        """Would a line of these be printed?"""
        if self.level < LEVELS[level]:
            return False
        return level != "INFO" or not subsystems or not self.settings.debug_subsys.isdisjoint(subsystems)

    def write(self, lines: Iterable[Line]) -> None:
        """Raises ConfigError where NCCL_DEBUG_FILE cannot be written."""
        for line in lines:
            if self.prints(line.level, line.subsystems):
                self._sink(line).write(self.formatted(line))

    def formatted(self, line: Line) -> str:
        """With its prefix and end."""
        if line.level == "VERSION":
            return line.text + "\n"
        who = self.processes
        prefix = f"{who.host(line.rank)}:{who.pid(line.rank)}:{who.tid(line.rank)} [{who.device(line.rank)}]"
        if line.level == "WARN":
            return f"\n{prefix} {line.place} NCCL WARN {line.text}\n"
        return f"{prefix} NCCL INFO {line.text}\n"

    def _sink(self, line: Line) -> TextIO:
        pattern = self.settings.debug_file
        if not pattern or line.level == "VERSION" or self.level <= LEVELS["VERSION"]:
            return self.out
        name = file_name(pattern, host=self.processes.host(line.rank), pid=self.processes.pid(line.rank))
        if name not in self._files:
            try:
                stream = io.TextIOWrapper(open_to_write(name), encoding="utf-8")  # stays open until `close`
                self._files[name] = self._closing.enter_context(stream)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(f"{name} cannot be written: {reason}", key="NCCL_DEBUG_FILE") from None
        return self._files[name]

    def close(self) -> None:
        self._files.clear()
        self._closing.close()


def file_name(pattern: str, *, host: str, pid: int) -> str:
    """NCCL_DEBUG_FILE's `%h`, `%p` and `%%`; what else stands after a percent sign stays."""
    result = []
    at = 0
    while at < len(pattern):
        mark = pattern[at : at + 2]
        known = {"%h": host, "%p": str(pid), "%%": "%"}
        result.append(known.get(mark, mark if mark.startswith("%") else pattern[at]))
        at += 2 if mark.startswith("%") else 1
    return "".join(result)
