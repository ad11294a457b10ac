"""Virtual lanes and priorities of a packet run: how many, their service levels, their arbitration.

InfiniBand: what a subnet manager programmed into each port (`Routes.lane_tables`), else `run.packet`'s maps and
arbitration, alike on every port. Ethernet: strict priorities, then weights. Only the lanes are modelled that the
service levels in use lead to; levels that nobody was known to use share them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.grouped import grouped
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric
from fabrictwin.routing.lane_tables import SERVICE_LEVELS, Entries, LaneTables
from fabrictwin.routing.tables import Routes

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.machine import Machine

MOST_LANES = 8  # that the kernel models


def _levels(routes: Routes, options: PacketOptions) -> list[int]:
    """Service levels that traffic has."""
    chosen = {options.lanes.service_level or 0, *(level for _, level in options.lanes.service_levels)}
    return sorted(chosen | {int(level) for level in np.unique(routes.lane)})


def lanes_needed(routes: Routes, options: PacketOptions) -> int:
    """Return the lanes of a run: as asked for, as routing breaks cycles with, as tables lead to."""
    most = routes.lanes
    if routes.lane_tables is not None:
        most = max(most, 1 + max(routes.lane_tables.lanes_of(_levels(routes, options)), default=0))
        if most > MOST_LANES:
            message = f"got SL to VL maps that lead to lane {most - 1}, expected lanes below {MOST_LANES}"
            raise ConfigError(message, key="virtual_lanes")
    return max(options.lanes.lanes, 1 << (most - 1).bit_length())


def lane_tables(
    fabric: Fabric, routes: Routes, options: PacketOptions, *, lanes: int, strict: int, frame_bytes: int
) -> dict[str, Any]:
    """Return the part of the kernel's `Config` that maps service levels to lanes and arbitrates between them."""
    from fabrictwin.kernel.packet.state.config import Arbitration

    if routes.lane_tables is not None and fabric.technology == "infiniband":
        return _programmed(routes.lane_tables, _levels(routes, options), options, lanes)
    arbitration = options.lanes.arbitration
    more: dict[str, Any] = {"strict": strict | sum(1 << vl for vl in set(arbitration.strict_priorities))}
    if options.lanes.sl_to_vl:
        network = np.isin(fabric.port_kind, NETWORK)
        more["sl2vl"] = (tuple(sl % lanes for sl in range(SERVICE_LEVELS)), options.lanes.sl_to_vl)
        more["port_sl2vl"] = network.astype(np.int16)
    if arbitration.vl_high or arbitration.vl_low:
        more["arbitrations"] = (Arbitration(arbitration.vl_high, arbitration.vl_low, arbitration.vl_high_limit),)
    if arbitration.ets_weights:
        # the lightest sends a packet a turn
        least = min(arbitration.ets_weights)
        quanta = [w * frame_bytes // least for w in arbitration.ets_weights]
        more["weights"] = (*quanta, *([fabric.mtu_bytes] * (lanes - len(quanta))))
    return more


def set_lane_tables(routes: Routes, options: PacketOptions, machine: Machine, tables: LaneTables) -> None:
    """Let ports map service levels and arbitrate by these tables from now on; what waits stays in its lane.

    Raises ConfigError where they lead to lanes that the run was not built with.
    """
    from fabrictwin.kernel.packet.state.config import Config

    levels = _levels(routes, options)
    most = max(tables.lanes_of(levels), default=0)
    if most >= machine.config.lanes:
        message = f"got SL to VL maps that lead to lane {most}, expected lanes below {machine.config.lanes}"
        raise ConfigError(
            f"{message}, which the run began with; run.packet.virtual_lanes says more", key="virtual_lanes"
        )
    more = _programmed(tables, levels, options, machine.config.lanes)
    ports = len(machine.state.port)
    for name, otherwise in (("port_sl2vl", 0), ("sl2vl_by_input", 0), ("port_arbitration", NONE)):
        if len(more.get(name, ())) and len(more[name]) < ports:  # ports that stand for work in hosts
            rest = np.full(ports - len(more[name]), otherwise)
            more[name] = np.concatenate([more[name], rest])
    machine.set_virtual_lanes(grouped(Config(), more).virtual_lanes)


def _programmed(tables: LaneTables, levels: list[int], options: PacketOptions, lanes: int) -> dict[str, Any]:
    """The maps and the arbitration of each port; a lane that no level in use leads to may be in no table."""
    from fabrictwin.kernel.packet.state.config import Arbitration

    if options.lanes.sl_to_vl or options.lanes.arbitration.vl_high or options.lanes.arbitration.vl_low:
        raise ConfigError(
            "got sl_to_vl or VL arbitration beside a subnet manager, which programs them; expected one of the two",
            key="run.packet",
        )
    follow = np.arange(SERVICE_LEVELS)[None] % lanes
    more: dict[str, Any] = {
        "sl2vl": tuple(tuple(int(vl) for vl in row) for row in np.vstack([follow, tables.sl_to_vl % lanes])),
        "port_sl2vl": (tables.sl_to_vl_row + 1).astype(np.int16),
        "sl2vl_by_input": tables.by_input,
    }
    if tables.arbitrations:
        used = tables.lanes_of(levels)
        idle = tuple((vl, 1) for vl in range(lanes) if vl not in used)

        def modelled(entries: Entries) -> Entries:
            return tuple((vl, weight) for vl, weight in entries if vl < lanes and weight > 0)

        more["arbitrations"] = tuple(
            Arbitration(modelled(one.high), modelled(one.low) + idle, one.high_limit)
            for one in tables.arbitrations
        )
        more["port_arbitration"] = tables.arbitration_row
    return more
