"""Addresses: GIDs, routes, address vectors and the handles made of them (`pyverbs.addr`)."""

from __future__ import annotations

import errno
from dataclasses import InitVar, dataclass
from typing import Any

from fabrictwin.verbs.adapter.completions import WC
from fabrictwin.verbs.adapter.work_requests import AddressVector
from fabrictwin.verbs.attributes.code_words import fields, lines
from fabrictwin.verbs.pyverbs.base import PyverbsCM, PyverbsObject, failure
from fabrictwin.verbs.pyverbs.gid import GID
from fabrictwin.verbs.pyverbs.pd import PD
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsUserError

__all__ = ["AH", "GID", "GRH", "AHAttr", "GlobalRoute"]

_ROUTE = ("dgid", "flow_label", "sgid_index", "hop_limit", "traffic_class")


def _text(gid: GID | str | None) -> str:
    return str(GID()) if gid is None else str(gid)


class _Address:
    """An attribute that reads as a GID's text and takes a GID or its text."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> str:
        return str(getattr(instance, self._name))

    def __set__(self, instance: Any, value: GID | str) -> None:
        setattr(instance, self._name, GID(_text(value)))


class GRH(PyverbsObject):
    """A global route header, as it lies before a datagram."""

    sgid = _Address()
    dgid = _Address()

    def __init__(
        self,
        sgid: GID | None = None,
        dgid: GID | None = None,
        version_tclass_flow: int = 0,
        paylen: int = 0,
        next_hdr: int = 0,
        hop_limit: int = 1,
    ) -> None:
        self._sgid, self._dgid = sgid or GID(), dgid or GID()
        self.version_tclass_flow = version_tclass_flow
        self.paylen = paylen
        self.next_hdr = next_hdr
        self.hop_limit = hop_limit

    def __str__(self) -> str:
        head = fields(self, "version_tclass_flow", "paylen", next_hdr="next header", hop_limit="hop limit")
        return fields(self, dgid="DGID", sgid="SGID") + head


class GlobalRoute(PyverbsObject):
    """The part of an address that is needed beyond a subnet, and always on Ethernet."""

    dgid = _Address()

    def __init__(
        self,
        dgid: GID | None = None,
        flow_label: int = 0,
        sgid_index: int = 0,
        hop_limit: int = 1,
        traffic_class: int = 0,
    ) -> None:
        self._dgid = GID() if dgid is None else GID.of(dgid.raw)
        self.flow_label = flow_label
        self.sgid_index = sgid_index
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class

    def __str__(self) -> str:
        return fields(self, *_ROUTE)


@dataclass(eq=False, repr=False)
class AHAttr(PyverbsObject):
    """An address vector."""

    dlid: int = 0
    sl: int = 0
    src_path_bits: int = 0
    static_rate: int = 0
    is_global: int = 0
    port_num: int = 1
    gr: InitVar[GlobalRoute | None] = None

    def __post_init__(self, gr: GlobalRoute | None) -> None:
        if self.is_global and gr is None:
            raise PyverbsUserError("A global AHAttr needs gr, got none")
        route = gr if gr is not None and self.is_global else GlobalRoute(hop_limit=0)
        self._dgid = GID(route.dgid)
        self.flow_label = route.flow_label
        self.sgid_index = route.sgid_index
        self.hop_limit = route.hop_limit
        self.traffic_class = route.traffic_class

    @property
    def dgid(self) -> str | None:
        return str(self._dgid) if self.is_global else None

    @dgid.setter
    def dgid(self, val: GID | str) -> None:
        self._dgid = GID(_text(val))

    def vector(self) -> AddressVector:
        """The address vector as the adapter keeps it."""
        return AddressVector(
            dlid=int(self.dlid),
            sl=int(self.sl),
            src_path_bits=int(self.src_path_bits),
            static_rate=int(self.static_rate),
            is_global=bool(self.is_global),
            port_num=int(self.port_num),
            dgid=self._dgid.raw,
            flow_label=int(self.flow_label),
            sgid_index=int(self.sgid_index),
            hop_limit=int(self.hop_limit),
            traffic_class=int(self.traffic_class),
        )

    @classmethod
    def of(cls, vector: AddressVector) -> AHAttr:
        route = GlobalRoute(
            GID.of(vector.dgid), vector.flow_label, vector.sgid_index, vector.hop_limit, vector.traffic_class
        )
        return cls(
            vector.dlid,
            vector.sl,
            vector.src_path_bits,
            vector.static_rate,
            int(vector.is_global),
            vector.port_num,
            route,
        )

    def __str__(self) -> str:
        source = lines((("source path bits", self.src_path_bits),))
        local = fields(self, "dlid", "sl") + source + fields(self, "static_rate", "is_global", "port_num")
        return local + (fields(self, *_ROUTE) if self.is_global else "")


class AH(PyverbsCM):
    """An address handle: from `attr=AHAttr`, or the way back of a datagram from `wc=`, `grh=`, `port_num=`."""

    def __init__(self, pd: PD, **kwargs: Any) -> None:
        adapter = pd.adapter
        if len(kwargs) == 1:
            self.vector = kwargs["attr"].vector()
        else:
            self.vector = _way_back(kwargs["wc"], kwargs["grh"], kwargs["port_num"], adapter)
        vector = self.vector
        known = 0 <= vector.sgid_index < len(adapter.gids) if vector.is_global else not adapter.ethernet
        if vector.port_num != 1 or not known:
            raise failure("Failed to create AH", errno.EINVAL)
        self.pd: PD | None = pd
        pd._adopt(self)

    def close(self) -> None:
        self.pd = None


def _way_back(wc: WC, grh: GRH | int, port_num: int, adapter: Any) -> AddressVector:
    """`ibv_create_ah_from_wc`: `grh` is a GRH, or the address of one in memory."""
    if isinstance(grh, int):
        import ctypes

        raw = ctypes.string_at(grh, 40)
        dgid, sgid = raw[8:24], raw[24:40]
        if adapter.ethernet and raw[0] >> 4 != 6:  # an IPv4 header in the last 20 bytes
            dgid, sgid = (bytes(10) + b"\xff\xff" + raw[at : at + 4] for at in (32, 36))
    else:
        dgid, sgid = GID(grh.sgid).raw, GID(grh.dgid).raw
    index = next((i for i, gid in enumerate(adapter.gids) if gid.raw == sgid), 0)
    return AddressVector(
        dlid=wc.slid,
        sl=wc.sl,
        src_path_bits=wc.dlid_path_bits,
        port_num=port_num,
        is_global=bool(wc.wc_flags & 1),
        dgid=dgid,
        sgid_index=index,
        hop_limit=0xFF,
    )
