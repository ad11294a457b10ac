"""Work requests (`pyverbs.wr`): kept small, since programs make one for every message."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fabrictwin.verbs.adapter.work_requests import BIND, LOCAL_INV, SEND, SEND_INV, SIGNALED
from fabrictwin.verbs.attributes.code_words import flag_text, lines
from fabrictwin.verbs.pyverbs.base import inc_rkey
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError

if TYPE_CHECKING:
    from fabrictwin.verbs.pyverbs.addr import AH
    from fabrictwin.verbs.pyverbs.mr import MW, MWBindInfo

Segments = tuple[tuple[int, int, int], ...]

_NEEDS_NO_SGE = frozenset((BIND, LOCAL_INV, SEND_INV))
_SEND_FLAGS = {
    1: "IBV_SEND_FENCE",
    2: "IBV_SEND_SIGNALED",
    4: "IBV_SEND_SOLICITED",
    8: "IBV_SEND_INLINE",
    16: "IBV_SEND_IP_CSUM",
}


class SGE:
    """A piece of registered memory."""

    __slots__ = ("addr", "length", "lkey")

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        self.addr = addr
        self.length = length
        self.lkey = lkey

    def read(self, length: int, offset: int) -> bytes:
        """Bytes that lie there."""
        return ctypes.string_at(self.addr + offset, length)

    def close(self) -> None:
        """Nothing is held."""

    def __str__(self) -> str:
        return lines((("Address", hex(self.addr)), ("Length", self.length), ("Key", hex(self.lkey))))


def _copied(sg: Sequence[SGE] | None, num_sge: int) -> Segments:
    """The first `num_sge` pieces by value: a program may use its objects again once it has made the request."""
    if not num_sge or sg is None:
        return ()
    if num_sge == 1:
        first = sg[0]
        return ((first.addr, first.length, first.lkey),)
    if num_sge > len(sg):
        raise PyverbsUserError(f"num_sge is {num_sge}, but sg has {len(sg)} elements")
    return tuple((sge.addr, sge.length, sge.lkey) for sge in sg[:num_sge])


class RecvWR:
    """A buffer to receive into; `next_wr` is posted with it."""

    __slots__ = ("next_wr", "num_sge", "segments", "wr_id")

    def __init__(
        self,
        wr_id: int = 0,
        num_sge: int = 0,
        sg: Sequence[SGE] | None = None,
        next_wr: RecvWR | None = None,
    ) -> None:
        self.wr_id = wr_id
        self.num_sge = num_sge
        self.segments = _copied(sg, num_sge)
        self.next_wr = next_wr

    @property
    def sg_list(self) -> list[SGE]:
        return [SGE(*segment) for segment in self.segments]

    def close(self) -> None:
        """Nothing is held."""

    def __str__(self) -> str:
        return lines((("WR ID", self.wr_id), ("Num SGE", self.num_sge)))


class SendWR:
    """A request to send, read, write or change remote memory; `next_wr` is posted with it.

    `imm_data` is as it lies in memory (`socket.htonl` of what it means); of SEND_WITH_INV and LOCAL_INV it is the
    key to invalidate.
    """

    __slots__ = (
        "_ah",
        "_compare",
        "_info",
        "_qkey",
        "_qpn",
        "_rkey",
        "_srqn",
        "_swap",
        "imm_data",
        "next_wr",
        "num_sge",
        "opcode",
        "rdma_remote_addr",
        "rdma_rkey",
        "segments",
        "send_flags",
        "wr_id",
    )

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: int = SIGNALED,
        next_wr: SendWR | None = None,
    ) -> None:
        if (num_sge < 1 or sg is None) and opcode not in _NEEDS_NO_SGE:
            raise PyverbsUserError("A WR needs at least one SGE")
        self.wr_id = wr_id
        self.opcode = opcode
        self.num_sge = num_sge
        self.imm_data = imm_data
        self.segments = _copied(sg, num_sge)
        self.send_flags = send_flags
        self.next_wr = next_wr
        self.rdma_remote_addr = self.rdma_rkey = 0
        self._compare = self._swap = 0
        self._ah: AH | None = None
        self._qpn = self._qkey = self._srqn = 0
        self._rkey = 0
        self._info: tuple[MW, MWBindInfo] | None = None

    @property
    def sg_list(self) -> list[SGE]:
        return [SGE(*segment) for segment in self.segments]

    @sg_list.setter
    def sg_list(self, val: SGE) -> None:
        self.segments = ((val.addr, val.length, val.lkey),)

    def set_wr_ud(self, ah: AH, rqpn: int, rqkey: int) -> None:
        """Set the destination of a datagram."""
        self._ah = ah
        self._qpn = rqpn
        self._qkey = rqkey

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Remote memory to read from or write to."""
        self.rdma_rkey = rkey
        self.rdma_remote_addr = addr

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """The remote word of an atomic, and its operands."""
        self.rdma_rkey = rkey
        self.rdma_remote_addr = addr
        self._compare = compare_add
        self._swap = swap

    def set_bind_wr(self, mw: MW, bind_info: MWBindInfo) -> None:
        """Bind a type 2 window, under its next key (`rkey`)."""
        self._rkey = inc_rkey(mw.rkey)
        self._info = mw, bind_info

    @property
    def rkey(self) -> int:
        """The key that a bind gives its window."""
        return self._rkey

    def set_qp_type_xrc(self, remote_srqn: int) -> None:
        """The shared receive queue that an XRC message goes to."""
        self._srqn = remote_srqn

    def close(self) -> None:
        """Nothing is held."""

    def __str__(self) -> str:
        return lines(
            (
                ("WR ID", self.wr_id),
                ("Num SGE", self.num_sge),
                ("Opcode", self.opcode),
                ("Imm Data", self.imm_data),
                ("Send flags", send_flags_to_str(self.send_flags)),
            )
        )


def send_flags_to_str(flags: int) -> str:
    return flag_text(flags, _SEND_FLAGS)
