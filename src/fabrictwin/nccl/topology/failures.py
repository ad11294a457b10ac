"""Communicators that do not come up."""

from __future__ import annotations

from fabrictwin.base.errors import SimulatedError
from fabrictwin.base.records import record


@record
class Failure:
    """Why a communicator does not come up, as NCCL's log has it."""

    host: int
    warning: str  # the line after NCCL WARN
    result: str  # what ncclCommInitRank returns
    why: str  # for people
    connected: bool = False  # it came up, and its first message between hosts fails

    def error(self, name: str) -> SimulatedError:
        return SimulatedError(self.result, name, f"{self.warning} ({self.why})")
