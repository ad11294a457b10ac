"""Connect two queue pairs of one process: what programs otherwise exchange over a socket.

On Ethernet a side's GID is the one that its connection manager would take: the IPv4 address's, of RoCE v1 or v2 as
`cma_roce_mode` has set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabrictwin.base.errors import ConfigError
from fabrictwin.verbs.adapter.qp_checks import MTU_CODES
from fabrictwin.verbs.pyverbs.addr import GID, AHAttr, GlobalRoute
from fabrictwin.verbs.pyverbs.qp import QP, QPAttr

if TYPE_CHECKING:
    from fabrictwin.verbs.adapter.adapter import Adapter

_RESPONDER_READS = 16
_TIMEOUT, _RETRIES, _RNR_TIMER = 14, 7, 12  # as librdmacm's defaults: 67 ms, 7 times, 0.64 ms


def address(own: Adapter, other: Adapter) -> AHAttr:
    """The address vector from one adapter to another. Raises ConfigError where they share no network."""
    if own.ethernet != other.ethernet or own.plane != other.plane:
        raise ConfigError(f"{other.host_name}/{other.name} cannot be reached from {own.host_name}/{own.name}")
    index = own.gid_index(own.roce_mode)
    far = other.gids[other.gid_index(own.roce_mode)]
    route = GlobalRoute(GID.of(far.raw), sgid_index=index, hop_limit=64)
    return AHAttr(dlid=other.lid, gr=route, is_global=int(own.ethernet))


def connect(one: QP, other: QP, *, access: int = 0, mtu_bytes: int | None = None, reads: int = 16) -> None:
    """Bring two connected queue pairs (RC or UC, in RESET or INIT) to RTS toward each other.

    `access` is what each lets the other do to its memory. Raises PyverbsRDMAError, ConfigError.
    """
    for own, far in ((one, other), (other, one)):
        mine, theirs = own.qp.adapter, far.qp.adapter
        attr = QPAttr(path_mtu=MTU_CODES[mtu_bytes or min(mine.mtu_bytes, theirs.mtu_bytes)])
        attr.qp_access_flags = access or own.qp.attributes.qp_access_flags
        attr.dest_qp_num = far.qp_num
        attr.ah_attr = address(mine, theirs)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = min(reads, _RESPONDER_READS)
        attr.min_rnr_timer, attr.timeout = _RNR_TIMER, _TIMEOUT
        attr.retry_cnt = attr.rnr_retry = _RETRIES
        own.to_rts(attr)
