"""Attributes of queue pairs, wanted and actual: the attribute classes of `pyverbs.qp`."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

from fabrictwin.verbs.abi.device_codes import ibv_mtu
from fabrictwin.verbs.abi.queue_codes import ibv_qp_state, ibv_qp_type
from fabrictwin.verbs.adapter.qp_checks import Attributes
from fabrictwin.verbs.attributes.code_words import lines
from fabrictwin.verbs.pyverbs.addr import AHAttr
from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError
from fabrictwin.verbs.pyverbs.utils import access_flags_to_str, mtu_to_str, qp_state_to_str, qp_type_to_str

if TYPE_CHECKING:
    from fabrictwin.verbs.pyverbs.pd import PD
    from fabrictwin.verbs.pyverbs.srq import SRQ
    from fabrictwin.verbs.pyverbs.xrcd import XRCD


@dataclass(eq=False, repr=False)
class QPCap(PyverbsObject):
    """Sizes of the two queues."""

    max_send_wr: int = 1
    max_recv_wr: int = 10
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0

    def __str__(self) -> str:
        return lines((name.replace("_", " "), value) for name, value in vars(self).items())


def _of_cap(name: str) -> property:
    """A field of `cap` that the attribute classes also have themselves."""
    return property(
        lambda self: getattr(self.cap, name),
        lambda self, value: setattr(self.cap, name, value),
        doc=f"`cap.{name}`",
    )


class _CompletionQueueOf:
    """An attribute that takes a completion queue of either kind, or none."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return getattr(instance, self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        from fabrictwin.verbs.pyverbs.cq import CQ, CQEX

        if value is not None and not isinstance(value, CQ | CQEX):
            raise PyverbsUserError(f"Expected CQ/CQEX, got {type(value).__name__}")
        setattr(instance, self._name, value)


@dataclass(eq=False, repr=False)
class QPInitAttr(PyverbsObject):
    """Wanted attributes of a queue pair of a protection domain."""

    qp_type: int = ibv_qp_type.IBV_QPT_UD
    qp_context: Any = None
    scq: InitVar[Any] = None
    rcq: InitVar[Any] = None
    srq: SRQ | None = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: int = 1

    send_cq = _CompletionQueueOf()
    recv_cq = _CompletionQueueOf()
    max_send_wr = _of_cap("max_send_wr")
    max_recv_wr = _of_cap("max_recv_wr")
    max_send_sge = _of_cap("max_send_sge")
    max_recv_sge = _of_cap("max_recv_sge")
    max_inline_data = _of_cap("max_inline_data")

    def __post_init__(self, scq: Any, rcq: Any) -> None:
        self.send_cq, self.recv_cq = scq, rcq
        self.cap = self.cap or QPCap()  # a program may pass none

    def __str__(self) -> str:
        kind = (("QP type", qp_type_to_str(self.qp_type)), ("SQ sig. all", self.sq_sig_all))
        return lines(kind) + str(self.cap)


@dataclass(eq=False, repr=False)
class QPInitAttrEx(QPInitAttr):
    """Wanted attributes of a queue pair of a context; `comp_mask` says which of the further fields count."""

    sq_sig_all: int = 0
    comp_mask: int = 0
    pd: PD | None = None
    xrcd: XRCD | None = None
    create_flags: int = 0
    max_tso_header: int = 0
    source_qpn: int = 0
    hash_conf: Any = None
    ind_table: Any = None
    send_ops_flags: int = 0


class QPAttr(PyverbsObject):
    """`ibv_qp_attr`: which of it counts is said by a mask where it is used."""

    def __init__(
        self,
        qp_state: int = ibv_qp_state.IBV_QPS_INIT,
        cur_qp_state: int = ibv_qp_state.IBV_QPS_RESET,
        port_num: int = 1,
        path_mtu: int = ibv_mtu.IBV_MTU_1024,
    ) -> None:
        self.qp_state = qp_state
        self.cur_qp_state = cur_qp_state
        self.path_mtu = path_mtu
        self.port_num = port_num
        self.path_mig_state = 0
        self.qkey = 0
        self.rq_psn = 0
        self.sq_psn = 0
        self.dest_qp_num = 0
        self.qp_access_flags = 0
        self.cap = QPCap()
        self.ah_attr = AHAttr()
        self.alt_ah_attr = AHAttr()
        self.pkey_index = 0
        self.alt_pkey_index = 0
        self.en_sqd_async_notify = 0
        self.sq_draining = 0
        self.max_rd_atomic = 0
        self.max_dest_rd_atomic = 0
        self.min_rnr_timer = 0
        self.timeout = 0
        self.retry_cnt = 0
        self.rnr_retry = 0
        self.alt_port_num = 0
        self.alt_timeout = 0
        self.rate_limit = 0

    def plain(self) -> Attributes:
        """Return the attributes as the adapter keeps them."""
        plain = Attributes()
        for name in Attributes.__slots__:
            value = getattr(self, name)
            setattr(plain, name, value.vector() if isinstance(value, AHAttr) else int(value))
        return plain

    @classmethod
    def of(cls, plain: Attributes, *, state: int, cap: QPCap) -> QPAttr:
        made = cls()
        for name in Attributes.__slots__:
            value = getattr(plain, name)
            setattr(made, name, value if isinstance(value, int) else AHAttr.of(value))
        made.qp_state = made.cur_qp_state = state
        made.cap = cap
        return made

    def __str__(self) -> str:
        words = {
            "qp_state": qp_state_to_str(self.qp_state),
            "cur_qp_state": qp_state_to_str(self.cur_qp_state),
            "path_mtu": mtu_to_str(self.path_mtu),
            "qp_access_flags": access_flags_to_str(self.qp_access_flags),
        }
        plain = ((name, words.get(name, value)) for name, value in vars(self).items() if isinstance(value, int))
        return lines(((name.replace("_", " "), value) for name, value in plain), 24) + str(self.ah_attr)


@dataclass(eq=False, repr=False)
class ECE(PyverbsCM):
    """Enhanced connection establishment: vendor options, of which the twin's adapters have none."""

    vendor_id: int = 0
    options: int = 0
    comp_mask: int = 0

    def __str__(self) -> str:
        return lines((("Vendor ID", self.vendor_id), ("Options", self.options), ("Comp mask", self.comp_mask)))


@dataclass(eq=False, repr=False)
class QPRateLimitAttr(PyverbsObject):
    """Rate at which a queue pair may send, in kb/s; 0 is as fast as it can."""

    rate_limit: int = 0
    max_burst_sz: int = 0
    typical_pkt_sz: int = 0
    comp_mask: int = 0
