"""An InfiniBand subnet's manager: its options, partitions, the GUIDs that routing is told, its QoS policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from fabrictwin.base.records import record


@record
class PartitionLine:
    """A definition of partitions.conf. Members are GUIDs or keywords, each with full, limited or both."""

    name: str
    pkey: int
    ipoib: bool = False
    mtu: int | None = None  # code: 5 is 4096
    rate: int | None = None
    sl: int | None = None
    defmember: str = "limited"
    members: Mapping[str, str] = field(default_factory=dict)
    line: int = 0


@record
class QosPolicy:
    """A QoS policy: service levels of its levels, what its port groups hold, rules (what is matched, level)."""

    levels: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[tuple[str, str], ...] = ()


@record
class Subnet:
    """What opensm.conf and the files that it names say."""

    options: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[PartitionLine, ...] = ()
    roots: tuple[int, ...] = ()
    compute_nodes: tuple[int, ...] = ()
    io_nodes: tuple[int, ...] = ()
    qos: QosPolicy = QosPolicy()
    file: str = ""
