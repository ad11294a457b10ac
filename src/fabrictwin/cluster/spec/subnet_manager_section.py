"""The `run.subnet_manager` section of a spec: the twin's own managers at work while the job runs.

How tables are routed is the cluster's (`routing`); here stand where a manager runs and what its datagrams take.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fabrictwin.base.units import Duration
from fabrictwin.cluster.spec.cluster_section import Model
from fabrictwin.cluster.spec.congestion_section import CongestionControl

_KEYS = ("qos_max_vls", "qos_high_limit", "qos_vlarb_high", "qos_vlarb_low", "qos_sl2vl")


class QualityOfService(Model):
    """Quality of service, as OpenSM's options of these names have it."""

    qos_max_vls: Literal[1, 2, 4, 8, 15] | None = None
    qos_high_limit: Annotated[int, Field(strict=True, ge=0, le=255)] | None = None
    qos_vlarb_high: str | None = None  # "0:4,1:64": lane and weight in blocks of 64 bytes
    qos_vlarb_low: str | None = None
    qos_sl2vl: str | None = None  # 16 lanes, "0,1,2,..."; 15 discards


class Reconfiguration(QualityOfService):
    """Settings that all managers take at a time; what is left out stays as it was."""

    time: Duration
    congestion_control: CongestionControl | None = None
    partitions: str | None = None  # a file as OpenSM's partitions.conf
    join: str | None = None  # "NODE MGID": the node's port becomes a member of a multicast group
    leave: str | None = None

    @property
    def sets(self) -> bool:
        """Return whether managers take other settings."""
        return any(getattr(self, key) is not None for key in (*_KEYS, "congestion_control", "partitions"))

    @model_validator(mode="after")
    def _something(self) -> Reconfiguration:
        keys = (*_KEYS, "congestion_control", "partitions", "join", "leave")
        if all(getattr(self, key) is None for key in keys):
            raise ValueError(f"got a time alone, expected one of {', '.join(keys)}")
        return self


class SubnetManager(QualityOfService):
    """One manager a subnet. The times are estimates, to be replaced by what is measured on a site."""

    host: str = ""  # the node that the first manager runs on; otherwise the first adapter with a cable
    mad_time: Duration = Field(default=20_000_000, json_schema_extra={"default": "20 us"})
    hop_time: Duration = Field(default=300_000, json_schema_extra={"default": "300 ns"})
    window: Annotated[int, Field(strict=True, ge=1, le=4096)] = 4  # datagrams in flight
    sweep_interval: Annotated[Duration, Field(gt=0, json_schema_extra={"default": "10 s"})] = 10 * 10**12
    partitions: str | None = None  # a file as OpenSM's partitions.conf; otherwise all are full members of one
    changes: tuple[Reconfiguration, ...] = ()
