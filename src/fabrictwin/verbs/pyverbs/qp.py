"""Queue pairs (`pyverbs.qp`)."""

from __future__ import annotations

from dataclasses import dataclass

from fabrictwin.verbs.attributes.qp_attributes import ECE, QPAttr, QPCap, QPInitAttr, QPInitAttrEx, QPRateLimitAttr
from fabrictwin.verbs.pyverbs.base import PyverbsCM
from fabrictwin.verbs.queue_pairs.basic_qp import QP
from fabrictwin.verbs.queue_pairs.extended_qp import QPEx

__all__ = [
    "ECE",
    "QP",
    "DataBuffer",
    "QPAttr",
    "QPCap",
    "QPEx",
    "QPInitAttr",
    "QPInitAttrEx",
    "QPRateLimitAttr",
]


@dataclass(eq=False, repr=False)
class DataBuffer(PyverbsCM):
    """A piece of memory that is sent inline."""

    addr: int
    length: int
