"""Forking with registered memory (`pyverbs.fork`): regions are plain memory, nothing is to be done."""

from __future__ import annotations

from fabrictwin.verbs.abi.device_codes import ibv_fork_status


def fork_init() -> None:
    """Make memory safe for forks, which it is."""


def is_fork_initialized() -> int:
    return int(ibv_fork_status.IBV_FORK_UNNEEDED)
