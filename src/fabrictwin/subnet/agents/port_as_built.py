"""PortInfo of a port as it powers on: what it can do, before anybody has set anything."""

from __future__ import annotations

from enum import Enum, auto
from functools import cache

from fabrictwin.subnet.wire import link_encodings as speeds
from fabrictwin.subnet.wire.smp import Capability, Capability2, PhysState, PortInfo, PortState

GID_PREFIX = 0xFE80_0000_0000_0000
VL_CAP = 4  # VL 0 to 7
VL_ARBITRATION_ENTRIES = 8
GUIDS = 8


class PortRole(Enum):
    """Whose port it is, on which its capabilities rest."""

    ENDPORT = auto()  # of an adapter, aggregation node or router
    MANAGEMENT = auto()  # port 0 of a switch: an end port that speaks for the switch
    EXTERNAL = auto()  # of a switch to a cable, which has no capabilities of its own


@cache
def port_as_built(fastest: speeds.Speed, widths: frozenset[int], mtu: int, up: bool, role: PortRole) -> bytes:
    """PortInfo of a port as it powers on."""
    can = speeds.supported_fields(fastest)
    width_mask = sum(speeds.WIDTH_CODES[w] for w in widths)
    second = Capability2(0)
    if 2 in widths:
        second |= Capability2.WIDTH_2X
    if fastest >= speeds.Speed.HDR:
        second |= Capability2.SPEED_HDR
    if fastest >= speeds.Speed.NDR:
        second |= Capability2.SPEED_NDR
    if fastest >= speeds.Speed.XDR:
        second |= Capability2.SPEED_XDR | Capability2.EXTENDED_SPEEDS2
    capabilities = Capability.TRAP | Capability.SL_MAPPING | Capability.SYSTEM_IMAGE_GUID
    capabilities |= Capability.CAPABILITY_NOTICE | Capability.OTHER_LOCAL_CHANGES
    capabilities |= Capability.AUTOMATIC_MIGRATION | Capability.CLIENT_REREGISTRATION
    if role is PortRole.MANAGEMENT:
        capabilities |= Capability.MULTICAST_FDB_TOP
    if role is PortRole.EXTERNAL:
        capabilities = Capability(0)
    if fastest >= speeds.Speed.FDR:
        capabilities |= Capability.EXTENDED_SPEEDS
    if second:
        capabilities |= Capability.CAPABILITY_MASK2
    active = speeds.active_fields(fastest)
    return PortInfo(
        gid_prefix=GID_PREFIX,
        capability_mask=int(capabilities),
        capability_mask2=int(second),
        link_width_enabled=width_mask,
        link_width_supported=width_mask,
        link_width_active=speeds.WIDTH_CODES[4],
        link_speed_supported=can.first,
        link_speed_enabled=can.first,
        link_speed_active=active.first,
        link_speed_ext_supported=can.extended,
        link_speed_ext_enabled=can.extended,
        link_speed_ext_active=active.extended,
        link_speed_ext2_supported=can.extended2,
        link_speed_ext2_enabled=can.extended2,
        link_speed_ext2_active=active.extended2,
        port_state=PortState.INIT if up else PortState.DOWN,
        port_physical_state=PhysState.LINK_UP if up else PhysState.POLLING,
        link_down_default_state=PhysState.POLLING,
        neighbor_mtu=mtu,
        mtu_cap=mtu,
        vl_cap=VL_CAP,
        operational_vls=VL_CAP,
        vl_arb_high_cap=VL_ARBITRATION_ENTRIES,
        vl_arb_low_cap=VL_ARBITRATION_ENTRIES,
        guid_cap=GUIDS,
        subnet_timeout=18,
        resp_time_value=16,
        local_phy_errors=8,
        overrun_errors=8,
    ).encode()
