"""Queue pairs as NCCL_IB_* have them, as options of the packet engine.

NCCL sends data so that it may arrive out of order (the write and its notice apart) by default on InfiniBand and
not on RoCE; `NCCL_IB_ADAPTIVE_ROUTING` decides. Whether switches then spread packets is the fabric's:
`run.packet.balance` where the spec says so. Where it says nothing, those of a benchmark can; a job's packets take
the tables unless the variable is set, as the key's default says. Time-out and retries are the queue pair's, and so
NCCL's; `run.packet` may say others where NCCL's variables say nothing.
"""

from __future__ import annotations

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.grouped import grouped
from fabrictwin.cluster.spec.packet_section import Packet
from fabrictwin.engines.packet.packet_options import PacketOptions, options_of
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.topology.gids import gid_of


def service_level(settings: Settings, technology: str) -> int | None:
    """The service level of NET/IB's queue pairs, on Ethernet their priority; None where nothing is said.

    Ethernet: adapters and switches that trust the DSCP (the upper six bits of the traffic class) take its upper
    three as the priority, which is the vendors' default; without a traffic class the service level is the priority
    tag. Raises ConfigError.
    """
    level, traffic_class = settings.ib_sl, settings.ib_tc
    most = 15 if technology == "infiniband" else 7
    if traffic_class is not None and not 0 <= traffic_class <= 255:
        raise ConfigError(f"got {traffic_class}, expected a traffic class from 0 to 255", key="NCCL_IB_TC")
    if technology != "infiniband" and traffic_class is not None:
        return traffic_class >> 5
    if level is not None and not 0 <= level <= most:
        raise ConfigError(f"got {level}, expected a service level from 0 to {most}", key="NCCL_IB_SL")
    return level


def packet_options(
    section: Packet | None,
    technology: str,
    settings: Settings,
    *,
    seed: int = 1,
    sockets: bool = False,
    job: bool = False,
) -> PacketOptions:
    """Options of the packet engine for the network under NCCL's connections, of a job's or a benchmark's.

    Raises ConfigError.
    """
    modelled = options_of(section, technology, seed)
    if sockets:
        return modelled
    able = "adaptive" if section is None or section.balance is None else modelled.balance
    adaptive = settings.ib_adaptive_routing
    asked = section is not None and section.balance not in (None, "routed")
    by_default = asked if job else asked or technology == "infiniband"
    spreads = by_default if adaptive is None else bool(adaptive)
    level = service_level(settings, technology)
    control = modelled.congestion.control
    if technology == "ethernet" and control == "dcqcn" and gid_of(settings).first_version:
        control = "none"  # RoCE v1 has no IP header that switches could mark
    return grouped(
        modelled,
        {
            "control": control,
            "balance": able if spreads else "routed",
            "service_level": modelled.lanes.service_level if level is None else level,
            "timeout": _retries(section, "timeout", "NCCL_IB_TIMEOUT", settings.ib_timeout, settings),
            "retry_count": _retries(section, "retry_count", "NCCL_IB_RETRY_CNT", settings.ib_retry_cnt, settings),
        },
    )


def _retries(section: Packet | None, key: str, variable: str, own: int, settings: Settings) -> int:
    """NCCL's value, or the section's where it has one. Raises ConfigError where both were written and differ."""
    given: int | None = None if section is None else getattr(section, key)
    if given is None or given == own:
        return own
    if variable in dict(settings.given):
        raise ConfigError(f"got {given} beside {variable}={own}, expected one of the two", key=f"run.packet.{key}")
    return given
