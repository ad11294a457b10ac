"""Partition keys on the packet kernel: queue pairs whose ends are no longer in one partition carry nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.partition_keys import KeyViolations, may_talk

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.machine import Machine


def set_partition_keys(machine: Machine, keys: I64) -> None:
    """Let adapters hold these keys [E] from now on. What is on its way is looked at where it arrives."""
    qp = machine.state.qp[: machine.queue_pairs]
    between = (qp.src != NONE) & (qp.src != qp.dst)
    allowed = may_talk(keys, np.where(between, qp.src, 0), np.where(between, qp.dst, 0))
    machine.forbid(between & ~allowed)


def key_violations(machine: Machine, adapters: int) -> I64:
    """[E] packets that each adapter's keys kept out."""
    qp = machine.state.qp[: machine.queue_pairs]
    between = qp.src != NONE
    found: I64 = np.bincount(qp.dst[between], weights=qp.key_violations[between], minlength=adapters).astype(
        np.int64
    )
    return found


def violations_by_queue_pair(machine: Machine) -> KeyViolations:
    """Queue pairs that carried packets which keys kept out."""
    qp = machine.state.qp[: machine.queue_pairs]
    at = np.flatnonzero((qp.src != NONE) & (qp.key_violations > 0))
    columns = (qp.src, qp.dst, qp.sl, qp.key_violations, qp.key_violation_ps)
    return KeyViolations(at, *(np.asarray(column[at], np.int64) for column in columns))
