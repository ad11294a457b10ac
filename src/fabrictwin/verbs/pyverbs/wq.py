"""Work queues and receive-side scaling (`pyverbs.wq`): the twin's adapters have none."""

from __future__ import annotations

from fabrictwin.verbs.attributes.unsupported import Bag, absent

_WHAT = "the twin's adapters have no receive-side scaling"


class WQInitAttr(Bag):
    """What a work queue is to be."""


class WQAttr(Bag):
    """What a work queue is."""


class RwqIndTableInitAttr(Bag):
    """What a table of work queues is to be."""


class RxHashConf(Bag):
    """How packets are spread over queues."""


WQ = absent("WQ", _WHAT)
RwqIndTable = absent("RwqIndTable", _WHAT)
