"""A run as perftest 4.5 prints it: its header, the two ends, a table; and as data.

The lines on relaxed ordering, `ibv_wr*` and data exchange are the tool's defaults; here nothing hangs on them.
"""

from __future__ import annotations

from typing import Any

from fabrictwin.tools.perftest.perftest_addresses import Address
from fabrictwin.tools.perftest.perftest_hosts import End
from fabrictwin.tools.perftest.perftest_loops import Bandwidth, Run
from fabrictwin.tools.perftest.perftest_options import RX_DEPTH, TX_DEPTH, Verb

CQ_MODERATION = 100  # the tool's default: a completion so often
RULE = "-" * 87
_NAMES = {Verb.WRITE: "RDMA_Write", Verb.READ: "RDMA_Read", Verb.SEND: "Send", Verb.ATOMIC: "Atomic"}
PS_PER_US = 10**6
MIB, GIGABIT = 1 << 20, 10**9


def _title(run: Run) -> str:
    name = _NAMES[run.options.verb]
    if run.options.verb == Verb.ATOMIC:
        name += f" {run.options.atomic}"
    both = " Bidirectional" if run.options.bidirectional else ""
    return f"{name}{both} {'Latency' if run.options.latency else 'BW'} Test"


def _gid(end: End) -> str:
    assert end.gid is not None
    return ":".join(f"{byte:02}" if end.gid[:12] == bytes(10) + b"\xff\xff" else f"{byte:02x}" for byte in end.gid)


def _header(run: Run) -> list[str]:
    options, ethernet = run.options, run.technology == "ethernet"
    lines = [
        RULE,
        f"{'':20}{_title(run)}",
        f" Dual-port       : OFF\t\tDevice         : {run.ends[0].device}",
        f" Number of qps   : {options.queue_pairs}\t\tTransport type : IB",
        f" Connection type : {options.connection}\t\tUsing SRQ      : OFF",
        " PCIe relax order: ON",
        " ibv_wr* API     : ON",
        f" TX depth        : {_tx_depth(run)}",
    ]
    if options.verb == Verb.SEND and options.bidirectional:
        lines.append(f" RX depth        : {RX_DEPTH}")
    if not options.latency:
        lines.append(f" CQ Moderation   : {min(CQ_MODERATION, _tx_depth(run))}")
    lines += [f" Mtu             : {run.mtu}[B]", f" Link type       : {'Ethernet' if ethernet else 'IB'}"]
    if ethernet or options.gid_index is not None:
        lines.append(f" GID index       : {run.ends[0].gid_index}")
    if options.verb in (Verb.READ, Verb.ATOMIC):
        lines.append(f" Outstand reads  : {options.outstanding}")
    else:
        lines.append(f" Max inline data : {options.inline_bytes}[B]")
    lines += [" rdma_cm QPs\t : OFF", " Data ex. method : Ethernet", RULE]
    for side, (word, end) in enumerate(zip((" local", " remote"), run.ends, strict=True)):
        for pair in run.addresses:
            lines.append(f"{word} address: {_address(run, end, pair[side])}")
            if end.gid is not None:
                lines.append(f" GID: {_gid(end)}")
    return [*lines, RULE]


def _tx_depth(run: Run) -> int:
    return 1 if run.options.latency else run.options.tx_depth or TX_DEPTH


def _address(run: Run, end: End, at: Address) -> str:
    """Return what one end tells the other: of READs how many it takes, and of READs and WRITEs where."""
    options = run.options
    line = f"LID {end.lid:#04x} QPN {at.qpn:#06x} PSN {at.psn:#06x}"
    if options.verb == Verb.READ:
        line += f" OUT {options.outstanding:#04x}"
    if options.verb in (Verb.READ, Verb.WRITE):
        line += f" RKey {at.rkey:#08x} VAddr {at.vaddr:#016x}"
    return line


def text(run: Run) -> str:
    """Header, table, rule."""
    lines, options = _header(run), run.options
    if options.latency:
        lines.append(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
            "   99% percentile[usec]   99.9% percentile[usec] "
        )
    else:
        unit = "Gb/sec" if options.report_gbits else "MB/sec"
        lines.append(f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]")
    for row in run.rows:
        if isinstance(row, Bandwidth):
            scale = GIGABIT if options.report_gbits else 8 * MIB
            lines.append(
                f" {row.size:<7}    {row.iterations:<10}     {row.peak_bps / scale:<7.2f}            "
                f"{row.average_bps / scale:<7.2f} \t\t   {row.messages_per_s / 1e6:<7.6f}"
            )
        else:
            us = [
                v / PS_PER_US
                for v in (row.least, row.most, row.typical, row.average, row.deviation, row.p99, row.p999)
            ]
            lines.append(
                f" {row.size:<7} {row.iterations:<10}     {us[0]:<7.2f}        {us[1]:<7.2f}      {us[2]:<7.2f}  "
                f"     {us[3]:<7.2f}     \t{us[4]:<7.2f}\t\t{us[5]:<7.2f} \t\t{us[6]:<7.2f}"
            )
    return "\n".join([*lines, RULE]) + "\n"


def as_json(run: Run) -> dict[str, Any]:
    """Parameters and rows; keys as perftest's own JSON has them."""
    options = run.options
    rows = []
    for row in run.rows:
        if isinstance(row, Bandwidth):
            scale = GIGABIT if options.report_gbits else 8 * MIB
            rows.append(
                {
                    "MsgSize": row.size,
                    "n_iterations": row.iterations,
                    "BW_peak": round(row.peak_bps / scale, 6),
                    "BW_average": round(row.average_bps / scale, 6),
                    "MsgRate": round(row.messages_per_s / 1e6, 6),
                }
            )
        else:
            names = ("t_min", "t_max", "t_typical", "t_avg", "t_stdev", "t_99", "t_99.9")
            us = (row.least, row.most, row.typical, row.average, row.deviation, row.p99, row.p999)
            rows.append(
                {
                    "MsgSize": row.size,
                    "n_iterations": row.iterations,
                    **{name: round(value / PS_PER_US, 6) for name, value in zip(names, us, strict=True)},
                }
            )
    info = {
        "test": options.test,
        "from": f"{run.ends[0].host}/{run.ends[0].device}",
        "to": f"{run.ends[1].host}/{run.ends[1].device}",
        "Connection_type": options.connection,
        "Number_of_qps": options.queue_pairs,
        "Bidirectional": options.bidirectional,
        "MTU": run.mtu,
        "Link_type": "Ethernet" if run.technology == "ethernet" else "IB",
        "Max_inline_data": options.inline_bytes,
        "BW_unit": None if options.latency else "Gb/sec" if options.report_gbits else "MB/sec",
    }
    return {"test_info": info, "results": rows}
