"""Words for codes, and how attributes print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fabrictwin.verbs.abi.completion_codes import ibv_wc_status

_STATUS = {
    ibv_wc_status.IBV_WC_SUCCESS: "success",
    ibv_wc_status.IBV_WC_LOC_LEN_ERR: "local length error",
    ibv_wc_status.IBV_WC_LOC_QP_OP_ERR: "local QP operation error",
    ibv_wc_status.IBV_WC_LOC_PROT_ERR: "local protection error",
    ibv_wc_status.IBV_WC_WR_FLUSH_ERR: "work request flushed",
    ibv_wc_status.IBV_WC_MW_BIND_ERR: "memory window bind error",
    ibv_wc_status.IBV_WC_REM_INV_REQ_ERR: "remote invalid request error",
    ibv_wc_status.IBV_WC_REM_ACCESS_ERR: "remote access error",
    ibv_wc_status.IBV_WC_REM_OP_ERR: "remote operation error",
    ibv_wc_status.IBV_WC_RETRY_EXC_ERR: "transport retries exceeded",
    ibv_wc_status.IBV_WC_RNR_RETRY_EXC_ERR: "receiver-not-ready retries exceeded",
}
_OPCODE = {
    0: "Send",
    1: "RDMA write",
    2: "RDMA read",
    3: "Compare and swap",
    4: "Fetch and add",
    5: "Bind memory window",
    6: "Local invalidate",
    7: "TSO",
    8: "Flush",
    9: "Atomic write",
    0x80: "Receive",
    0x81: "Receive RDMA with immediate",
}
CLOSED = "closed"  # in place of what an object had
WC_FLAGS = {1: "GRH", 2: "With immediate", 4: "IP checksum OK", 8: "With invalidate"}


def status_text(status: int) -> str:
    """A completion status in words."""
    if status in _STATUS:
        return _STATUS[ibv_wc_status(status)]
    return ibv_wc_status(status).name if status in list(ibv_wc_status) else f"unknown status {status}"


def opcode_text(opcode: int) -> str:
    return _OPCODE.get(opcode, f"unknown opcode {opcode}")


def flag_text(flags: int, names: Mapping[int, str]) -> str:
    """The names of the flags that are set, with a blank after each."""
    return "".join(f"{name} " for bit, name in names.items() if flags & bit)


def lines(pairs: Iterable[tuple[str, Any]], width: int = 22) -> str:
    """`name : value` a line."""
    return "".join(f"{name:<{width}}: {value!s}\n" for name, value in pairs)


def fields(of: object, *names: str, **labels: str) -> str:
    """`name : value` a line, of an object's attributes by name; `labels` have another name to show."""
    shown = {name: name.replace("_", " ") for name in names} | labels
    return lines((label, getattr(of, name)) for name, label in shown.items())


def completion_text(completion: Any) -> str:
    return lines(
        (
            ("WR ID", completion.wr_id),
            ("status", status_text(completion.status)),
            ("opcode", opcode_text(completion.opcode)),
            ("vendor error", completion.vendor_err),
            ("byte length", completion.byte_len),
            ("QP num", completion.qp_num),
            ("source QP", completion.src_qp),
            ("immediate data", completion.imm_data),
            ("WC flags", flag_text(completion.wc_flags, WC_FLAGS)),
            ("P_Key index", completion.pkey_index),
            ("slid", completion.slid),
            ("sl", completion.sl),
            ("dlid path bits", completion.dlid_path_bits),
        )
    )
