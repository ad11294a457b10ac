"""Work queues and receive-side scaling (`pyverbs.wq`): the twin's adapters have none."""

from __future__ import annotations

from fabrictwin.verbs.attributes.unsupported import Bag, absent

_WHAT = "the twin's adapters have no receive-side scaling"


class WQInitAttr(Bag):
    """Wanted attributes of a work queue."""


class WQAttr(Bag):
    """Attributes of a work queue."""


class RwqIndTableInitAttr(Bag):
    """Wanted attributes of a table of work queues."""


class RxHashConf(Bag):
    """Spreading of packets over queues."""


WQ = absent("WQ", _WHAT)
RwqIndTable = absent("RwqIndTable", _WHAT)
