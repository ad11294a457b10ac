"""Commands that ask: what the device is, and how its port stands. Answers agree with `fabrictwin ibv_devinfo`."""

from __future__ import annotations

import errno

from fabrictwin.live import wire
from fabrictwin.live.context import Context, refuse
from fabrictwin.live.event_pipe import EventPipe
from fabrictwin.live.multicast import MOST_GROUPS, MOST_MEMBERS
from fabrictwin.live.uverbs.reply import Reply
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.attributes import device_limits

_ASYNC_BYTES = wire.ASYNC_EVENT.size


def firmware_number(version: str) -> int:
    """A firmware's version as librxe takes it apart: major, minor and sub-minor in 16 bits each."""
    parts = [int(part) if part.isdigit() else 0 for part in (*version.split("."), "0", "0")][:3]
    return parts[0] << 32 | parts[1] << 16 | parts[2]


def get_context(context: Context, call: wire.Call) -> Reply:
    """The descriptor of asynchronous events, and how many completion vectors there are."""
    if context.asynchronous is not None:
        raise refuse(errno.EINVAL)  # once for each opened device
    pipe = context.asynchronous = EventPipe(_ASYNC_BYTES)
    context.add_pipe(pipe, lambda: None)
    data = (0).to_bytes(4, "little") + device_limits.limits().completion_vectors.value.to_bytes(4, "little")
    return Reply(data, descriptor=pipe.reader, descriptor_at=0, after=pipe.hand_over)


def device_record(adapter: Adapter) -> bytes:
    """`struct ib_uverbs_query_device_resp`."""
    a = device_limits.device_attributes(adapter)
    guid = adapter.guid.to_bytes(8, "big")
    return wire.QUERY_DEVICE_RESPONSE.pack(
        firmware_number(a.fw_version), guid, guid, a.max_mr_size, a.page_size_cap,
        a.vendor_id, a.vendor_part_id, a.hw_ver, a.max_qp, a.max_qp_wr, a.device_cap_flags,
        a.max_sge, a.max_sge_rd, a.max_cq, a.max_cqe, a.max_mr, a.max_pd,
        a.max_qp_rd_atom, a.max_ee_rd_atom, a.max_res_rd_atom, a.max_qp_init_rd_atom, a.max_ee_init_rd_atom,
        a.atomic_caps, a.max_ee, a.max_rdd, a.max_mw, a.max_raw_ipv6_qps, a.max_raw_ethy_qp,
        MOST_GROUPS, MOST_MEMBERS, MOST_GROUPS * MOST_MEMBERS, a.max_ah, a.max_fmr, a.max_map_per_fmr,
        a.max_srq, a.max_srq_wr, a.max_srq_sge, a.max_pkeys, a.local_ca_ack_delay, a.phys_port_cnt,
    )  # fmt: skip


def query_device(context: Context, call: wire.Call) -> Reply:
    """Limits of the device."""
    base = device_record(context.adapter)
    if not call.extended:
        return Reply(base)
    a = device_limits.extended_attributes(context.adapter)
    length = len(base) + wire.EXTENDED_QUERY_DEVICE_TAIL.size
    # no on-demand paging, no receive-side scaling, no tag matching; time stamps are not in rxe's completions
    tail = wire.EXTENDED_QUERY_DEVICE_TAIL.pack(
        0, min(length, call.room), 0, 0, 0, 0, 0, a.hca_core_clock, a.device_cap_flags_ex, *[0] * 15
    )
    return Reply(base + tail)


def query_port(context: Context, call: wire.Call) -> Reply:
    """State, rates and tables of the port."""
    if call.body[8] != 1:
        raise refuse(errno.EINVAL)
    a = device_limits.port_attributes(context.adapter)
    data = wire.QUERY_PORT_RESPONSE.pack(
        a.port_cap_flags, a.max_msg_sz, a.bad_pkey_cntr, a.qkey_viol_cntr, a.gid_tbl_len, a.pkey_tbl_len,
        a.lid, a.sm_lid, a.state, a.max_mtu, a.active_mtu, a.lmc, a.max_vl_num, a.sm_sl, a.subnet_timeout,
        a.init_type_reply, a.active_width, a.active_speed, a.phys_state, a.link_layer, a.flags, 0,
    )  # fmt: skip
    return Reply(data)
