"""Causes: everything that a finding can name, by mechanism, with what makes it right and where that is written."""

from __future__ import annotations

from fabrictwin.diagnosis.causes.fabric_causes import FABRIC
from fabrictwin.diagnosis.causes.host_causes import HOST
from fabrictwin.diagnosis.causes.job_causes import JOB
from fabrictwin.diagnosis.finding import Cause

CAUSES: dict[str, Cause] = {cause.id: cause for cause in (*JOB, *FABRIC, *HOST)}


def cause(name: str) -> Cause:
    """The cause of this id."""
    return CAUSES[name]
