"""Effects of setting PortInfo on a port: as an end of the subnet, as an end of a link, as a state machine."""

from __future__ import annotations

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.node_as_built import LINEAR_CAP
from fabrictwin.subnet.wire.header import Status
from fabrictwin.subnet.wire.smp import PhysState, PortInfo, PortState

OK, BAD = int(Status.OK), int(Status.BAD_FIELD)


def set_identity(asked: PortInfo, info: PortInfo) -> int:
    """Set what belongs to the port as an end: LID, manager, keys."""
    if asked.lid >= LINEAR_CAP or asked.lid & (1 << asked.lmc) - 1:
        return BAD
    info.take(asked, "m_key", "m_key_protect_bits", "m_key_lease_period", "lid", "lmc", "master_sm_lid")
    info.take(asked, "master_sm_sl", "subnet_timeout", "multicast_pkey_trap_suppression")
    info.gid_prefix = asked.gid_prefix or info.gid_prefix
    for counter in ("m_key_violations", "p_key_violations", "q_key_violations"):
        if getattr(asked, counter) == 0:
            setattr(info, counter, 0)
    return OK


def set_link(asked: PortInfo, info: PortInfo) -> int:
    """Set what belongs to the port as an end of a link. A value out of range leaves the old one."""
    status = OK
    if asked.neighbor_mtu and not 1 <= asked.neighbor_mtu <= info.mtu_cap:
        status = BAD
    else:
        info.neighbor_mtu = asked.neighbor_mtu or info.neighbor_mtu
    if asked.operational_vls > info.vl_cap:
        status = BAD
    else:
        info.operational_vls = asked.operational_vls or info.operational_vls
    # 255 and the like mean "as supported" (14.2.5.6)
    for field, every in (("link_width", 0xFF), ("link_speed", 0xF)):
        supported, value = getattr(info, f"{field}_supported"), getattr(asked, f"{field}_enabled")
        if value == every:
            value = supported
        if value & ~supported:
            status = BAD
        elif value:
            setattr(info, f"{field}_enabled", value)
    extended = asked.link_speed_ext_enabled
    if extended == 31:
        info.link_speed_ext_enabled = info.link_speed_ext_supported
    elif extended == 30:
        info.link_speed_ext_enabled = info.link_speed_ext2_enabled = 0
    elif extended & ~info.link_speed_ext_supported:
        status = BAD
    elif extended:
        info.link_speed_ext_enabled = extended
    if asked.link_speed_ext2_enabled == 7:
        info.link_speed_ext2_enabled = info.link_speed_ext2_supported
    elif asked.link_speed_ext2_enabled == 6:
        info.link_speed_ext2_enabled = 0
    if asked.link_down_default_state in (PhysState.SLEEP, PhysState.POLLING):
        info.link_down_default_state = asked.link_down_default_state
    info.take(asked, "vl_high_limit", "hoq_life", "vl_stall_count", "local_phy_errors", "overrun_errors")
    info.take(asked, "partition_enforcement_inbound", "partition_enforcement_outbound")
    info.take(asked, "filter_raw_inbound", "filter_raw_outbound")
    return status


def set_state(state: SubnetState, slot: int, asked: PortInfo, now_ps: int) -> int:
    """The state machine of a port (7.2.7): Down to Initialize by training, then Armed, then Active."""
    physical, logical = asked.port_physical_state, asked.port_state
    if physical not in (PhysState.NO_CHANGE, PhysState.SLEEP, PhysState.POLLING, PhysState.DISABLED):
        return BAD
    if physical:
        state.take_down(slot, now_ps, phys=physical)
        if physical == PhysState.POLLING:
            state.bring_up(slot, now_ps)
    if logical in (PortState.NO_CHANGE, state.logical(slot)):
        return OK
    now = state.logical(slot)
    if logical == PortState.DOWN:
        if state.link[slot] != NONE:
            state.take_down(slot, now_ps)
            state.bring_up(slot, now_ps)
        return OK
    if (now, logical) in ((PortState.INIT, PortState.ARMED), (PortState.ARMED, PortState.ACTIVE)):
        at = 64 * slot + 32
        state.info[at] = state.info[at] & 0xF0 | logical
        state.notify_state(slot, now_ps)
        return OK
    return BAD
