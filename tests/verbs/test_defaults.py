"""Defaults of what programs make, words of errors, and the limit of a shared receive queue."""

from __future__ import annotations

import dataclasses
import importlib
import os
from types import SimpleNamespace as Record

import pytest

from fabrictwin.verbs.adapter import receive_queues
from fabrictwin.verbs.adapter.receive_queues import SharedReceiveQueue
from fabrictwin.verbs.adapter.transport import responder
from fabrictwin.verbs.pyverbs.addr import GID, AHAttr, GlobalRoute
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError

MODULES = ("addr", "cq", "device", "mr", "pd", "qp", "srq", "xrcd", "wr", "flow", "wq", "mem_alloc")
# A number of which nothing is said is 0 in pyverbs (its *.pyx in rdma-core), but for these
NOT_ZERO = {
    "AHAttr.port_num": 1, "AddressVector.hop_limit": 1, "AddressVector.port_num": 1, "CqInitAttrEx.cqe": 100,
    "OpsWr.flags": 1, "QPCap.max_recv_sge": 1, "QPCap.max_recv_wr": 10, "QPCap.max_send_sge": 1,
    "QPCap.max_send_wr": 1,
    "QPInitAttr.qp_type": 4, "QPInitAttr.sq_sig_all": 1, "QPInitAttrEx.qp_type": 4, "SrqAttr.max_sge": 1,
    "SrqAttr.max_wr": 100, "SrqInitAttrEx.max_sge": 1, "SrqInitAttrEx.max_wr": 100,
}  # fmt: skip


def records():
    """The public records of pyverbs' modules, by name."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(f"fabrictwin.verbs.pyverbs.{name}")
        found |= {
            kind.__name__: kind for kind in vars(module).values()
            if isinstance(kind,
            type) and dataclasses.is_dataclass(kind) and kind.__module__.startswith("fabrictwin.verbs")
        }  # fmt: skip
    return found


def defaults():
    return {
        f"{name}.{field.name}": int(field.default)
        for name, kind in records().items()
        for field in dataclasses.fields(kind)
        if isinstance(field.default, int) and not isinstance(field.default, bool) and field.default != 0
    }


def test_what_is_not_said_is_pyverbs_default():
    assert len(records()) >= 20
    assert defaults() == NOT_ZERO


def test_attributes_of_a_device_that_was_not_asked_are_zero():
    """Every number of the classes of a device's attributes, as calloc leaves them."""
    module = importlib.import_module("fabrictwin.verbs.attributes.device_attributes")
    kinds = [
        kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__
    ]
    numbers = {
        f"{kind.__name__}.{name}": value for kind in kinds for name, value in vars(kind).items()
        if type(value) is int and not name.startswith("_")
    }  # fmt: skip
    assert len(numbers) > 60
    assert {name for name, value in numbers.items() if value} == set()


def test_a_route_counts_where_an_address_is_global():
    route = GlobalRoute(
        dgid=GID("fe80:0000:0000:0000:0000:0000:0000:0007"),
        flow_label=3,
        sgid_index=2,
        hop_limit=9,
        traffic_class=4,
    )
    for is_global, found in ((1, (3, 2, 9, 4)), (0, (0, 0, 0, 0))):
        made = AHAttr(gr=route, is_global=is_global)
        assert (made.flow_label, made.sgid_index, made.hop_limit, made.traffic_class) == found
    with pytest.raises(PyverbsUserError, match="needs gr"):
        AHAttr(is_global=1)


def test_errors_say_their_number_and_its_words():
    assert str(PyverbsError("No way")) == "No way"
    assert str(PyverbsError("No way", 22)) == str(PyverbsError("No way", -22)).replace("-22", "22")
    assert str(PyverbsError("No way", 22)) == f"No way. Errno: 22, {os.strerror(22)}"
    assert str(PyverbsError("No way", 1)) == f"No way. Errno: 1, {os.strerror(1)}"
    assert (PyverbsRDMAError("x").error_code, PyverbsRDMAError("x", 5).error_code) == (-1, 5)
    assert str(PyverbsRDMAError("x", 5)) == f"x. Errno: 5, {os.strerror(5)}"
    assert str(PyverbsUserError("x")) == "x"


@pytest.mark.parametrize(("limit", "told"), [(0, []), (1, [0]), (3, [2]), (5, [4]), (9, [4])])
def test_a_limit_tells_once_when_fewer_buffers_remain(monkeypatch, limit, told):
    """Five buffers are taken one by one; the event comes with the one that leaves fewer than the limit."""
    monkeypatch.setattr(receive_queues.ReceiveQueue, "take", lambda self: self.queue.pop())
    made = SharedReceiveQueue.__new__(SharedReceiveQueue)
    seen: list[int] = []
    made.queue, made.limit = list(range(5)), limit
    made.sink = Record(raise_event=lambda kind, queue: seen.append(len(queue.queue)))
    for _ in range(5):
        made.take()
    assert seen == told
    assert made.limit == 0
    made.queue, made.limit, made.sink = [1, 2], 2, None
    assert made.take() == 2
    assert made.limit == 0


@pytest.mark.parametrize(
    ("packets", "psn", "receives", "refusal", "answered"),
    [
        (2, 7, True, 5, True),
        (2, 8, True, 5, False),
        (1, 8, True, 5, True),
        (2, 7, True, 0, False),
        (2, 7, False, 5, False),
    ],
)
def test_a_long_write_is_refused_by_its_first_packet(monkeypatch, packets, psn, receives, refusal, answered):
    """A write whose number is expected; a gap is dealt with when the rest is there."""
    seen = []
    qp = Record(expected_psn=7)
    monkeypatch.setattr(responder, "receiver", lambda work: qp if receives else None)
    monkeypatch.setattr(responder, "write_refused", lambda qp, work: (refusal, None))
    monkeypatch.setattr(responder, "_nak", lambda world, qp, work, why: seen.append(why))
    responder.begin(None, Record(packets=packets, psn=psn))
    assert seen == ([refusal] if answered else [])
