"""Transitions between the states of a queue pair: InfiniBand Architecture, volume 1, 10.3.1 and 11.2.5.2.

For each transition and transport, the attributes that must come with it and those that may. States that Linux
does not let software enter (SQE, entered by an error) are not targets; leaving RESET for ERR is refused as
`ib_modify_qp_is_ok` does.
"""

from __future__ import annotations

from fabrictwin.verbs.abi.queue_codes import ibv_qp_attr_mask as mask
from fabrictwin.verbs.abi.queue_codes import ibv_qp_state as state
from fabrictwin.verbs.abi.queue_codes import ibv_qp_type as kind

RESET, INIT, RTR, RTS = (
    int(s) for s in (state.IBV_QPS_RESET, state.IBV_QPS_INIT, state.IBV_QPS_RTR, state.IBV_QPS_RTS)
)
SQD, SQE, ERR = (int(s) for s in (state.IBV_QPS_SQD, state.IBV_QPS_SQE, state.IBV_QPS_ERR))

RC, UC, UD, RAW = (int(k) for k in (kind.IBV_QPT_RC, kind.IBV_QPT_UC, kind.IBV_QPT_UD, kind.IBV_QPT_RAW_PACKET))
XRC_SEND, XRC_RECV = int(kind.IBV_QPT_XRC_SEND), int(kind.IBV_QPT_XRC_RECV)
KINDS = (RC, UC, UD, RAW, XRC_SEND, XRC_RECV)

RECEIVING = frozenset((RTR, RTS, SQD, SQE))

STATE = int(mask.IBV_QP_STATE)
CURRENT = int(mask.IBV_QP_CUR_STATE)
_PKEY, _PORT, _QKEY = int(mask.IBV_QP_PKEY_INDEX), int(mask.IBV_QP_PORT), int(mask.IBV_QP_QKEY)
_ACCESS, _AV, _ALT = int(mask.IBV_QP_ACCESS_FLAGS), int(mask.IBV_QP_AV), int(mask.IBV_QP_ALT_PATH)
_MTU, _DEST, _RQ_PSN = int(mask.IBV_QP_PATH_MTU), int(mask.IBV_QP_DEST_QPN), int(mask.IBV_QP_RQ_PSN)
_SQ_PSN, _TIMEOUT = int(mask.IBV_QP_SQ_PSN), int(mask.IBV_QP_TIMEOUT)
_RETRY, _RNR_RETRY = int(mask.IBV_QP_RETRY_CNT), int(mask.IBV_QP_RNR_RETRY)
_READS, _DEST_READS = int(mask.IBV_QP_MAX_QP_RD_ATOMIC), int(mask.IBV_QP_MAX_DEST_RD_ATOMIC)
_RNR_TIMER, _MIGRATION = int(mask.IBV_QP_MIN_RNR_TIMER), int(mask.IBV_QP_PATH_MIG_STATE)
_DRAINED, _RATE = int(mask.IBV_QP_EN_SQD_ASYNC_NOTIFY), int(mask.IBV_QP_RATE_LIMIT)

_CONNECTED = _PKEY | _PORT | _ACCESS
_ROUTE = _AV | _MTU | _DEST | _RQ_PSN
_TARGET = _ROUTE | _DEST_READS | _RNR_TIMER
_SENDER = _TIMEOUT | _RETRY | _RNR_RETRY | _SQ_PSN | _READS
_ON_ROUTE = _ALT | _ACCESS | _PKEY
_RUNNING = CURRENT | _ALT | _ACCESS | _MIGRATION

Rule = tuple[int, int]  # attributes that must be given, attributes that may be given
_NONE: dict[int, Rule] = dict.fromkeys(KINDS, (0, 0))

TRANSITIONS: dict[tuple[int, int], dict[int, Rule]] = {
    (RESET, RESET): _NONE,
    (RESET, INIT): {
        RC: (_CONNECTED, 0),
        UC: (_CONNECTED, 0),
        UD: (_PKEY | _PORT | _QKEY, 0),
        RAW: (_PORT, 0),
        XRC_SEND: (_CONNECTED, 0),
        XRC_RECV: (_CONNECTED, 0),
    },
    (INIT, INIT): {
        RC: (0, _CONNECTED),
        UC: (0, _CONNECTED),
        UD: (0, _PKEY | _PORT | _QKEY),
        RAW: (0, _PORT),
        XRC_SEND: (0, _CONNECTED),
        XRC_RECV: (0, _CONNECTED),
    },
    (INIT, RTR): {
        RC: (_TARGET, _ON_ROUTE),
        UC: (_ROUTE, _ON_ROUTE),
        UD: (0, _PKEY | _QKEY),
        RAW: (0, 0),
        XRC_SEND: (_ROUTE, _ON_ROUTE),
        XRC_RECV: (_TARGET, _ON_ROUTE),
    },
    (RTR, RTS): {
        RC: (_SENDER, _RUNNING | _RNR_TIMER),
        UC: (_SQ_PSN, _RUNNING),
        UD: (_SQ_PSN, CURRENT | _QKEY),
        RAW: (0, _RATE),
        XRC_SEND: (_SENDER, _RUNNING),
        XRC_RECV: (_TIMEOUT | _SQ_PSN, _RUNNING | _RNR_TIMER),
    },
    (RTS, RTS): {
        RC: (0, _RUNNING | _RNR_TIMER),
        UC: (0, _RUNNING),
        UD: (0, CURRENT | _QKEY),
        RAW: (0, _RATE),
        XRC_SEND: (0, _RUNNING),
        XRC_RECV: (0, _RUNNING | _RNR_TIMER),
    },
    (RTS, SQD): dict.fromkeys(KINDS, (0, _DRAINED)),
    (SQD, RTS): {
        RC: (0, _RUNNING | _RNR_TIMER),
        UC: (0, _RUNNING),
        UD: (0, CURRENT | _QKEY),
        XRC_SEND: (0, _RUNNING),
        XRC_RECV: (0, _RUNNING | _RNR_TIMER),
    },
    (SQD, SQD): {
        RC: (
            0,
            _PORT | _AV | _SENDER & ~_SQ_PSN | _DEST_READS | _ON_ROUTE | _RNR_TIMER | _MIGRATION,
        ),
        UC: (0, _AV | _ON_ROUTE | _MIGRATION),
        UD: (0, _PKEY | _QKEY),
        XRC_SEND: (0, _PORT | _AV | _SENDER & ~_SQ_PSN | _ON_ROUTE | _MIGRATION),
        XRC_RECV: (0, _PORT | _AV | _TIMEOUT | _DEST_READS | _ON_ROUTE | _RNR_TIMER | _MIGRATION),
    },
    (SQE, RTS): {UD: (0, CURRENT | _QKEY), UC: (0, CURRENT | _ACCESS)},
    **{(now, RESET): _NONE for now in (INIT, RTR, RTS, SQD, SQE, ERR)},
    **{(now, ERR): _NONE for now in (INIT, RTR, RTS, SQD, SQE, ERR)},
}

# Which attributes of the modify structure belong to a bit of the mask.
FIELDS: dict[int, tuple[str, ...]] = {
    _DRAINED: ("en_sqd_async_notify",),
    _ACCESS: ("qp_access_flags",),
    _PKEY: ("pkey_index",),
    _PORT: ("port_num",),
    _QKEY: ("qkey",),
    _AV: ("ah_attr",),
    _MTU: ("path_mtu",),
    _TIMEOUT: ("timeout",),
    _RETRY: ("retry_cnt",),
    _RNR_RETRY: ("rnr_retry",),
    _RQ_PSN: ("rq_psn",),
    _READS: ("max_rd_atomic",),
    _ALT: ("alt_ah_attr", "alt_pkey_index", "alt_port_num", "alt_timeout"),
    _RNR_TIMER: ("min_rnr_timer",),
    _SQ_PSN: ("sq_psn",),
    _DEST_READS: ("max_dest_rd_atomic",),
    _MIGRATION: ("path_mig_state",),
    _DEST: ("dest_qp_num",),
    _RATE: ("rate_limit",),
}


def allowed(qp_kind: int, now: int, target: int, given: int) -> bool:
    """Return whether a queue pair may go from state `now` to `target` with the attributes `given` (a mask)."""
    rule = TRANSITIONS.get((now, target), {}).get(qp_kind)
    if rule is None:
        return False
    required, optional = rule
    return given & required == required and not given & ~(required | optional | STATE)
