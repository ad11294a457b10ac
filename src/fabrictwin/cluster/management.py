"""The `run.subnet_manager` section of a spec: the twin's own managers at work while the job runs.

How tables are routed is the cluster's (`routing`); here stand where a manager runs and what its datagrams take.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fabrictwin.cluster.sections import Model
from fabrictwin.units import Duration


class SubnetManager(Model):
    """One manager a subnet. The times are estimates, to be replaced by what is measured on a site."""

    host: str = ""  # the node that the first manager runs on; otherwise the first adapter with a cable
    mad_time: Duration = Field(default=20_000_000, json_schema_extra={"default": "20 us"})
    hop_time: Duration = Field(default=300_000, json_schema_extra={"default": "300 ns"})
    window: Annotated[int, Field(strict=True, ge=1, le=4096)] = 4  # datagrams in flight
    sweep_interval: Annotated[Duration, Field(gt=0, json_schema_extra={"default": "10 s"})] = 10 * 10**12
