"""A queue pair's attributes as plain values, how they are checked, and the codes that some are written in."""

from __future__ import annotations

from fabrictwin.verbs.abi.queue_codes import ibv_qp_attr_mask as mask
from fabrictwin.verbs.adapter import qp_transitions as t
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.work_requests import LOCAL, ON_WIRE, SEND, SEND_IMM, WRITE, WRITE_IMM, AddressVector

MAX_READS = (
    16  # reads and atomics of a queue pair outstanding, each way (max_qp_rd_atom of the catalog's adapters)
)
PSN_BITS = 24
PSN_MASK = (1 << PSN_BITS) - 1

# IBA volume 1, table 45: the receiver-not-ready timer field in units of 10 us
_RNR_TIMER_10US = (
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
)  # fmt: skip
RNR_TIMER_PS = tuple(10_000_000 * t for t in _RNR_TIMER_10US)

# ibv_rate: the static rate field, in Mb/s
STATIC_RATE_MBPS = {
    2: 2500, 5: 5000, 3: 10000, 6: 20000, 4: 30000, 7: 40000, 8: 60000, 9: 80000, 10: 120000, 11: 14000,
    12: 56000, 13: 112000, 14: 168000, 15: 25000, 16: 100000, 17: 200000, 18: 300000, 19: 28000, 20: 50000,
    21: 400000, 22: 600000, 23: 800000, 24: 1200000,
}  # fmt: skip

_RELIABLE = ON_WIRE | LOCAL
# operations that the services know
OPERATIONS = {
    t.RC: _RELIABLE,
    t.XRC_SEND: _RELIABLE,
    t.UC: frozenset((WRITE, WRITE_IMM, SEND, SEND_IMM)) | LOCAL,
    t.UD: frozenset((SEND, SEND_IMM)),
    t.RAW: frozenset((SEND,)),
    t.XRC_RECV: frozenset[int](),
}

MTU_BYTES = {code: 128 << code for code in range(1, 6)}  # ibv_mtu
MTU_CODES = {size: code for code, size in MTU_BYTES.items()}


def timeout_ps(code: int) -> int:
    """The local acknowledgement timeout: 4.096 us times two to the power of its code; 0 is never."""
    return 4_096_000 << code if code else 0


class Attributes:
    """Fields of `ibv_qp_attr`."""

    __slots__ = (
        "ah_attr",
        "alt_ah_attr",
        "alt_pkey_index",
        "alt_port_num",
        "alt_timeout",
        "cur_qp_state",
        "dest_qp_num",
        "en_sqd_async_notify",
        "max_dest_rd_atomic",
        "max_rd_atomic",
        "min_rnr_timer",
        "path_mig_state",
        "path_mtu",
        "pkey_index",
        "port_num",
        "qkey",
        "qp_access_flags",
        "qp_state",
        "rate_limit",
        "retry_cnt",
        "rnr_retry",
        "rq_psn",
        "sq_draining",
        "sq_psn",
        "timeout",
    )

    def __init__(self) -> None:
        self.qp_state = self.cur_qp_state = 0
        self.path_mtu = self.path_mig_state = 0
        self.qkey = self.rq_psn = self.sq_psn = self.dest_qp_num = 0
        self.qp_access_flags = 0
        self.ah_attr = self.alt_ah_attr = AddressVector()
        self.pkey_index = self.alt_pkey_index = 0
        self.en_sqd_async_notify = self.sq_draining = 0
        self.max_rd_atomic = self.max_dest_rd_atomic = 0
        self.min_rnr_timer = self.timeout = self.retry_cnt = self.rnr_retry = 0
        self.port_num = 1
        self.alt_port_num = self.alt_timeout = 0
        self.rate_limit = 0


def _vector_valid(vector: AddressVector, adapter: Adapter) -> bool:
    if vector.port_num != 1 or not 0 <= vector.sl < 16:
        return False
    if adapter.ethernet and not vector.is_global:
        return False
    return not vector.is_global or 0 <= vector.sgid_index < len(adapter.gids)


def valid(attributes: Attributes, given: int, adapter: Adapter) -> bool:
    """Return whether the given attributes have values that the device takes."""
    a = attributes
    checks = (
        (mask.IBV_QP_PORT, a.port_num == 1),
        (mask.IBV_QP_PKEY_INDEX, 0 <= a.pkey_index < len(adapter.pkeys)),
        (mask.IBV_QP_PATH_MTU, a.path_mtu in MTU_BYTES and MTU_BYTES[a.path_mtu] <= adapter.mtu_bytes),
        (mask.IBV_QP_AV, _vector_valid(a.ah_attr, adapter)),
        (mask.IBV_QP_TIMEOUT, 0 <= a.timeout < 32),
        (mask.IBV_QP_RETRY_CNT, 0 <= a.retry_cnt < 8),
        (mask.IBV_QP_RNR_RETRY, 0 <= a.rnr_retry < 8),
        (mask.IBV_QP_MIN_RNR_TIMER, 0 <= a.min_rnr_timer < 32),
        (mask.IBV_QP_MAX_QP_RD_ATOMIC, 0 <= a.max_rd_atomic <= MAX_READS),
        (mask.IBV_QP_MAX_DEST_RD_ATOMIC, 0 <= a.max_dest_rd_atomic <= MAX_READS),
        (mask.IBV_QP_DEST_QPN, 0 <= a.dest_qp_num < 1 << 24),
    )
    return all(right for bit, right in checks if given & bit)
