"""Matching of records to a query (IBTA volume 1, 15.4.4): components by their bits, selectors, subscriptions."""

from __future__ import annotations

from fabrictwin.subnet.wire import link_encodings as speeds
from fabrictwin.subnet.wire import notice, sa
from fabrictwin.subnet.wire.fields import Attribute
from fabrictwin.subnet.wire.sa import Selector
from fabrictwin.subnet.wire.smp import NodeInfo, PortInfo, SmInfo, SwitchInfo

MOST_RECORDS = 500_000  # beyond it a table is refused, not cut
LIFE_TIME = 18  # 4.096 us x 2^18: what a packet may live at most
EVERY_TRAP = 0xFFFF
EVERY_TYPE = 0xFFFF
EVERY_PRODUCER = 0xFFFFFF
EVERY_LID = 0xFFFF

_INNER: dict[type[Attribute], type[Attribute]] = {
    sa.NodeRecord: NodeInfo,
    sa.PortInfoRecord: PortInfo,
    sa.SwitchInfoRecord: SwitchInfo,
    sa.SmInfoRecord: SmInfo,
}


class Refusal(Exception):  # noqa: N818 - a status, not a fault
    """A request that ends with a status."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"status 0x{status:04x}")


def subscribed(info: notice.InformInfo, reported: notice.Notice) -> bool:
    if info.is_generic != reported.is_generic:
        return False
    if info.trap_number not in (EVERY_TRAP, reported.trap_number):
        return False
    if info.type not in (EVERY_TYPE, reported.type):
        return False
    if info.producer_type not in (EVERY_PRODUCER, reported.producer_type):
        return False
    if info.lid_range_begin not in (0, EVERY_LID):
        return info.lid_range_begin <= reported.issuer_lid <= max(info.lid_range_end, info.lid_range_begin)
    return True


def satisfies(asked: sa.PathRecord | sa.McMemberRecord, has: Attribute, name: str) -> bool:
    """Return whether MTU, rate or lifetime are as the selector wants them."""
    value, wanted = _order(name, getattr(has, name)), _order(name, getattr(asked, name))
    selector = getattr(asked, f"{name}_selector")
    if selector == Selector.GREATER:
        return value > wanted
    if selector == Selector.LESS:
        return value < wanted
    return selector == Selector.LARGEST or value == wanted


def _order(name: str, code: int) -> int:
    """A value by which codes compare: those of rates are not in their order."""
    if name != "rate":
        return code
    return speeds.RATES_ASCENDING.index(code) + 1 if code in speeds.RATES_ASCENDING else 0


def adjusted(asked: sa.PathRecord | sa.MultiPathRecord, name: str, has: int) -> int | None:
    """Return the MTU, rate or lifetime that a path which has so much is answered with; None where it does not do.

    As OpenSM does it: less than asked for is met by the next value below, and exactly so much by all that is more
    (but for rates).
    """
    wanted, selector = getattr(asked, name), getattr(asked, f"{name}_selector")
    rate = name == "rate"
    value, bar = _order(name, has), _order(name, wanted)
    if selector == Selector.GREATER:
        return has if value > bar else None
    if selector == Selector.LESS:
        if value < bar:
            return has
        if not rate:
            return wanted - 1 or None
        return speeds.RATES_ASCENDING[bar - 2] if bar > 1 else None
    if selector == Selector.EXACTLY:
        return (wanted if value == bar else None) if rate else (wanted if value >= bar else None)
    return has


class Matcher:
    """A query's components against records. Embedded attributes are decoded only where they are asked for."""

    def __init__(self, kind: type[Attribute], asked: Attribute, mask: int) -> None:
        names = [name for name in sa.components(kind, mask) if not name.endswith("_selector")]
        self._inner = _INNER.get(kind)
        self._plain: list[tuple[str, object]] = []
        self._inside: list[tuple[str, int]] = []
        self._items: list[tuple[str, int, int]] = []
        self._description = b""
        for name in names:
            if name.startswith("info."):
                assert self._inner is not None
                field = name[5:]
                self._inside.append((field, getattr(self._inner.decode(asked.info), field)))  # type: ignore[attr-defined]
            elif "[" in name:
                field, index = name[:-1].split("[")
                self._items.append((field, int(index), getattr(asked, field)[int(index)]))
            elif name == "description":
                self._description = getattr(asked, name).rstrip(b"\0")
            else:
                self._plain.append((name, getattr(asked, name)))

    def matches(self, record: Attribute) -> bool:
        if any(getattr(record, name) != value for name, value in self._plain):
            return False
        if any(getattr(record, name)[index] != value for name, index, value in self._items):
            return False
        if self._description and getattr(record, "description").rstrip(b"\0") != self._description:  # noqa: B009
            return False
        if self._inside:
            assert self._inner is not None
            inner = self._inner.decode(record.info)  # type: ignore[attr-defined]
            for field, value in self._inside:
                has = getattr(inner, field)
                # a capability mask asks for its bits, not for equality (15.2.5.3)
                if (has & value != value) if field == "capability_mask" else has != value:
                    return False
        return True


def link_rate_bps(info: PortInfo) -> int:
    """The data rate that a port's active width and speed give."""
    speed = speeds.read_speed(info.link_speed_active, info.link_speed_ext_active, info.link_speed_ext2_active)
    return speeds.rate_of(speeds.WIDTHS.get(info.link_width_active, 1), speed)
