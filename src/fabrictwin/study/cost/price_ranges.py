"""Prices between which a network lies, and what a token costs where one of them is another.

A figure with a range in the price book has that; an assumed one without lies between half and twice itself; any
other is what was quoted.
"""

from __future__ import annotations

from fabrictwin.catalog.price_book import Device, PriceBook
from fabrictwin.study.cost.bill_of_materials import Bill, Item
from fabrictwin.study.cost.cluster_cost import Cost

FACTORS = (0.5, 2.0)
NETWORK = ("switch", "cable")


def _entry(item: Item, book: PriceBook) -> Device | None:
    return {"host": book.hosts, "switch": book.switches}.get(item.kind, {}).get(item.name)


def assumed(item: Item, book: PriceBook) -> bool:
    """Return true where the price is an assumption; a quoted one may stand beside an assumed power."""
    entry = _entry(item, book)
    return item.price is not None and (item.estimate if entry is None else entry.price.estimate)


def price_range(item: Item, book: PriceBook) -> tuple[float, float]:
    """The lowest and the highest price of one, 0 and 0 where it has none."""
    if item.price is None:
        return 0.0, 0.0
    entry = _entry(item, book)
    low = high = item.price
    if assumed(item, book):
        low, high = item.price * FACTORS[0], item.price * FACTORS[1]
    if entry is not None and entry.low is not None:
        low = entry.low.value.amount
    if entry is not None and entry.high is not None:
        high = entry.high.value.amount
    return low, high


def network_range(bill: Bill, book: PriceBook) -> tuple[float, float]:
    """Prices between which switches and cables together lie."""
    ranges = [(item.count, *price_range(item, book)) for item in bill.items if item.kind in NETWORK]
    return sum(count * low for count, low, _ in ranges), sum(count * high for count, _, high in ranges)


def changed(cost: Cost, name: str, factor: float) -> float | None:
    """Return the cost of a million tokens where everything of a name is bought at so many times its price."""
    if cost.per_million_tokens is None or not cost.purchase:
        return None
    more = sum(item.count * (item.price or 0.0) for item in cost.bill.items if item.name == name) * (factor - 1)
    whole = cost.total + more * (1 + cost.years * cost.upkeep_a_year / cost.purchase)
    return cost.per_million_tokens * whole / cost.total
