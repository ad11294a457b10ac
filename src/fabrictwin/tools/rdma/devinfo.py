"""Text of `ibv_devinfo`, in the format of rdma-core 44: short, with `-v` everything, with `-l` names alone."""

from __future__ import annotations

from collections.abc import Sequence
from socket import AF_INET6, inet_ntop

from fabrictwin.verbs.abi.device_codes import ibv_device_cap_flags, ibv_port_state
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.gid import ROCE_V2
from fabrictwin.verbs.attributes.device_attributes import (
    guid_format,
    speed_to_str,
    translate_link_layer,
    translate_mtu,
    width_to_str,
)
from fabrictwin.verbs.attributes.device_limits import device_attributes, port_attributes
from fabrictwin.verbs.pyverbs.utils import gid_text

_TAB = 8
_DEVICE_VALUES, _PORT_VALUES = 40, 48  # columns
_ATOMIC = ("ATOMIC_NONE (0)", "ATOMIC_HCA (1)", "ATOMIC_GLOB (2)")
_PHYSICAL = ("", "SLEEP", "POLLING", "DISABLED", "PORT_CONFIGURATION TRAINNING", "LINK_UP", "LINK_ERROR_RECOVERY")
_LANES = {1: "1 (1)", 2: "2 (2)", 3: "4 (3)", 4: "8 (4)", 5: "15 (5)"}
_NO_SUCH_QUEUES = ("max_ee", "max_rdd")
_NEVER = (
    "max_raw_ipv6_qp",
    "max_raw_ethy_qp",
    "max_mcast_grp",
    "max_mcast_qp_attach",
    "max_total_mcast_qp_attach",
)


def _line(name: str, value: object, *, tabs: int, column: int) -> str:
    """A name and, tabs further on, its value."""
    width = tabs * _TAB + len(name) + 1
    return f"{chr(9) * tabs}{name}:{chr(9) * max(-(-(column - width) // _TAB), 1)}{value}"


def short_list(adapters: Sequence[Adapter]) -> str:
    """`-l`."""
    found = len(adapters)
    names = "".join(f"\t{adapter.name}\n" for adapter in adapters)
    return f"{found} HCA{'s' if found != 1 else ''} found:\n{names}"


def devinfo(adapter: Adapter, *, verbose: bool = False) -> str:
    """One device and its port."""
    device = device_attributes(adapter)
    rows: list[tuple[str, object]] = [
        ("transport", "InfiniBand (0)"),
        ("fw_ver", device.fw_version),
        ("node_guid", guid_format(device.node_guid)),
        ("sys_image_guid", guid_format(device.sys_image_guid)),
        ("vendor_id", f"0x{device.vendor_id:04x}"),
        ("vendor_part_id", device.vendor_part_id),
        ("hw_ver", f"0x{device.hw_ver:X}"),
        ("phys_port_cnt", device.phys_port_cnt),
    ]
    lines = [f"hca_id:\t{adapter.name}"]
    lines += [_line(name, value, tabs=1, column=_DEVICE_VALUES) for name, value in rows]
    if verbose:
        lines += _limits(adapter)
    return "\n".join([*lines, *_port(adapter, verbose=verbose), ""])


def _limits(adapter: Adapter) -> list[str]:
    device = device_attributes(adapter)

    def line(name: str, value: object) -> str:
        return _line(name, value, tabs=1, column=_DEVICE_VALUES)

    lines = [
        line("max_mr_size", f"0x{device.max_mr_size:x}"),
        line("page_size_cap", f"0x{device.page_size_cap:x}"),
        line("max_qp", device.max_qp),
        line("max_qp_wr", device.max_qp_wr),
        line("device_cap_flags", f"0x{device.device_cap_flags:08x}"),
    ]
    lines += [
        "\t" * 5 + flag.name.removeprefix("IBV_DEVICE_")
        for flag in ibv_device_cap_flags
        if device.device_cap_flags & flag.value and flag.name is not None
    ]
    lines += [
        line(name, getattr(device, name))
        for name in ("max_sge", "max_sge_rd", "max_cq", "max_cqe", "max_mr", "max_pd", "max_qp_rd_atom")
    ]
    lines += [
        line("max_ee_rd_atom", 0),
        line("max_res_rd_atom", device.max_res_rd_atom),
        line("max_qp_init_rd_atom", device.max_qp_init_rd_atom),
        line("max_ee_init_rd_atom", 0),
        line("atomic_cap", _ATOMIC[device.atomic_caps]),
        *(line(name, 0) for name in _NO_SUCH_QUEUES),
        line("max_mw", device.max_mw),
        *(line(name, 0) for name in _NEVER),
        line("max_ah", device.max_ah),
        line("max_fmr", 0),
    ]
    return lines + [
        line(name, getattr(device, name))
        for name in ("max_srq", "max_srq_wr", "max_srq_sge", "max_pkeys", "local_ca_ack_delay")
    ]


def _port(adapter: Adapter, *, verbose: bool) -> list[str]:
    port = port_attributes(adapter)
    state = ibv_port_state(port.state)

    def line(name: str, value: object) -> str:
        return _line(name, value, tabs=3, column=_PORT_VALUES)

    lines = [
        "\t\tport:\t1",
        line("state", f"{state.name.removeprefix('IBV_')} ({state.value})"),
        line("max_mtu", translate_mtu(port.max_mtu)),
        line("active_mtu", translate_mtu(port.active_mtu)),
        line("sm_lid", port.sm_lid),
        line("port_lid", port.lid),
        line("port_lmc", f"0x{port.lmc:02x}"),
        line("link_layer", translate_link_layer(port.link_layer)),
    ]
    if verbose:
        lines += [
            line("max_msg_sz", f"0x{port.max_msg_sz:x}"),
            line("port_cap_flags", f"0x{port.port_cap_flags:08x}"),
            line("max_vl_num", _LANES.get(port.max_vl_num, f"invalid value ({port.max_vl_num})")),
            line("bad_pkey_cntr", f"0x{port.bad_pkey_cntr:x}"),
            line("qkey_viol_cntr", f"0x{port.qkey_viol_cntr:x}"),
            line("sm_sl", port.sm_sl),
            line("pkey_tbl_len", port.pkey_tbl_len),
            line("gid_tbl_len", port.gid_tbl_len),
            line("subnet_timeout", port.subnet_timeout),
            line("init_type_reply", port.init_type_reply),
            line("active_width", width_to_str(port.active_width)),
            line("active_speed", speed_to_str(port.active_speed)),
            line("phys_state", f"{_PHYSICAL[port.phys_state]} ({port.phys_state})"),
        ]
        for index, gid in enumerate(adapter.gids):
            text = gid_text(gid.raw)
            if adapter.ethernet:
                # of v2 the address as it is usually written
                text = f"{inet_ntop(AF_INET6, gid.raw)}, RoCE v2" if gid.kind == ROCE_V2 else f"{text}, RoCE v1"
            lines.append(line(f"GID[{index:3d}]", text))
    return lines
