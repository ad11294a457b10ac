"""The twin of a spec's cluster as its faults leave it: without dead links, and with slow ones slow."""

from __future__ import annotations

from fabrictwin.base.progress import Stage, silent
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.faults import find_faults
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.twin.twin import Twin


def faulty_twin(blueprint: Blueprint, spec: Spec, stage: Stage = silent) -> Twin:
    """Return the twin with the links that faults of the spec kill or slow from the start. Raises ConfigError."""
    faults, _ = find_faults(blueprint, spec)
    stage("compiling the fabric", 0.3)
    twin = Twin(blueprint, dead=tuple(sorted(fault.cable for fault in faults if not fault.rate_bps)))
    for fault in faults:
        if fault.rate_bps:
            twin.degrade(twin.cable_now(fault.cable), fault.rate_bps)
    return twin
