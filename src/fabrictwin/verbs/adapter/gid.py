"""Entries of a port's GID table."""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.verbs.abi.device_codes import ibv_gid_type

IB_GID = int(ibv_gid_type.IBV_GID_TYPE_IB)
ROCE_V1, ROCE_V2 = int(ibv_gid_type.IBV_GID_TYPE_ROCE_V1), int(ibv_gid_type.IBV_GID_TYPE_ROCE_V2)


@record
class Gid:
    """An entry of a port's GID table."""

    raw: bytes
    kind: int  # ibv_gid_type
