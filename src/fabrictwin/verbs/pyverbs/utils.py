"""Codes to words and GIDs to bytes, by the names of `pyverbs.utils`."""

from __future__ import annotations

import re

from fabrictwin.verbs.abi.memory_codes import ibv_rereg_mr_err_code
from fabrictwin.verbs.attributes.code_words import flag_text
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError

_QP_TYPES = {2: "RC", 3: "UC", 4: "UD", 8: "Raw Packet", 9: "XRCD_SEND", 10: "XRCD_RECV", 0xFF: "Driver QP"}
_QP_STATES = {0: "Reset", 1: "Init", 2: "RTR", 3: "RTS", 4: "SQD", 5: "SQE", 6: "Error", 7: "Unknown"}
_MIGRATION = {0: "Migrated", 1: "Re-arm", 2: "Armed"}
_ACCESS = {
    1: "Local write",
    2: "Remote write",
    4: "Remote read",
    8: "Remote atomic",
    16: "MW bind",
    32: "Zero based",
    64: "On demand",
}


def be64toh(num: int) -> int:
    """A 64-bit number with its bytes the other way round."""
    return int.from_bytes(num.to_bytes(8, "little"), "big")


def gid_text(raw: bytes) -> str:
    """16 bytes as `xxxx:xxxx:...`, eight groups of four digits."""
    return raw.hex(":", 2)


def gid_bytes(text: str) -> bytes:
    """The 16 bytes of `xxxx:xxxx:...`. Raises PyverbsUserError."""
    if re.fullmatch(r"[0-9a-fA-F]{4}(:[0-9a-fA-F]{4}){7}", text) is None:
        raise PyverbsUserError(f"Invalid GID value ({text})")
    return bytes.fromhex(text.replace(":", ""))


def gid_str(subnet_prefix: int, interface_id: int) -> str:
    """A GID from its two halves, each as it lies in memory."""
    return gid_text(subnet_prefix.to_bytes(8, "little") + interface_id.to_bytes(8, "little"))


def gid_str_to_array(val: str) -> list[str]:
    """The 16 bytes of a GID, two digits each."""
    return [f"{byte:02x}" for byte in gid_bytes(val)]


def qp_type_to_str(qp_type: int) -> str:
    return _QP_TYPES.get(qp_type, f"Unknown ({qp_type})")


def qp_state_to_str(qp_state: int) -> str:
    return _QP_STATES.get(qp_state, f"Unknown ({qp_state})")


def mtu_to_str(mtu: int) -> int:
    return 128 << mtu if mtu in range(1, 6) else 0


def access_flags_to_str(flags: int) -> str:
    return flag_text(flags, _ACCESS)


def mig_state_to_str(mig: int) -> str:
    return _MIGRATION.get(mig, f"Unknown ({mig})")


def rereg_error_to_str(error: int) -> str:
    known = {code.value: code.name for code in ibv_rereg_mr_err_code}
    return known.get(error, f"Unknown error ({error})")
