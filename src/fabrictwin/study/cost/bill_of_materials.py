"""The bill of materials of a cluster: hosts, switches, cables by medium, rate and length, with prices and power.

A link's price holds both of its ends. Adapters come with their hosts. Discovered hosts and switches that are in no
catalog are counted, without a price.
"""

from __future__ import annotations

from collections import Counter

from fabrictwin import catalog
from fabrictwin.base.records import record
from fabrictwin.base.units import format_length, format_rate
from fabrictwin.catalog.price_book import PriceBook
from fabrictwin.cluster.blueprint import Blueprint


@record
class Item:
    """One line of the bill. `price` and `watts` are of a single one; None where no book has them."""

    kind: str  # host, switch, cable
    name: str
    title: str
    count: int
    price: float | None
    watts: float | None
    estimate: bool  # a figure of it is an assumption
    sources: tuple[str, ...]


@record
class Bill:
    """Everything that a cluster is made of."""

    currency: str
    items: tuple[Item, ...]
    gpus: int

    def total(self, kind: str | None = None) -> float:
        """The price of all items of a kind, or of all; what has no price counts nothing."""
        return sum(item.count * (item.price or 0.0) for item in self.items if kind in (None, item.kind))

    def watts(self, kind: str | None = None) -> float:
        """Power at most, of all items of a kind, or of all."""
        return sum(item.count * (item.watts or 0.0) for item in self.items if kind in (None, item.kind))

    def count(self, kind: str) -> int:
        """Items of a kind."""
        return sum(item.count for item in self.items if item.kind == kind)

    @property
    def hosts_priced(self) -> bool:
        """Every host has a price: else what the rest costs is no cost of GPUs or tokens."""
        return all(item.price is not None for item in self.items if item.kind == "host")

    @property
    def unpriced(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items if item.price is None)


def bill_of_materials(blueprint: Blueprint, book: PriceBook) -> Bill:
    """Counts and prices of all that a blueprint names."""
    items: list[Item] = []
    hosts = Counter(host.type for host in blueprint.hosts)
    for kind, count in sorted(hosts.items()):
        title = catalog.host(kind).title if kind else "hosts bound to no catalog host"
        items.append(_device("host", kind or "unknown host", title, count, book))
    for kind, count in sorted(Counter(switch.type for switch in blueprint.switches).items()):
        title = catalog.switch(kind).title if kind else "switches of a model that is not in the catalog"
        items.append(_device("switch", kind or "unknown switch", title, count, book))
    cables = blueprint.cables
    runs = Counter(zip(cables.rate_bps.tolist(), cables.length_mm.tolist(), strict=True))
    items += [cable_item(rate, length, count, book) for (rate, length), count in sorted(runs.items())]
    gpus = sum(catalog.host(kind).nodes.gpu * count for kind, count in hosts.items() if kind)
    return Bill(book.currency, tuple(items), gpus)


def cable_item(rate_bps: int, length_mm: int, count: int, book: PriceBook) -> Item:
    """So many links of a rate and length."""
    medium = catalog.medium(length_mm, rate_bps)
    title = f"{medium.title}, {format_rate(rate_bps)}, {format_length(length_mm)}"
    if medium.name not in book.cables:
        return Item("cable", medium.name, title, count, None, None, False, ())
    price, watts, row = book.cable(medium.name, rate_bps)
    assumed = row.link.estimate or row.power.estimate or rate_bps > row.rate
    return Item(
        "cable",
        medium.name,
        title,
        count,
        price,
        watts,
        assumed,
        tuple(sorted({row.link.source, row.power.source})),
    )


def _device(kind: str, name: str, title: str, count: int, book: PriceBook) -> Item:
    entry = (book.hosts if kind == "host" else book.switches).get(name)
    if entry is None:
        return Item(kind, name, title, count, None, None, False, ())
    return Item(
        kind,
        name,
        title,
        count,
        entry.price.value.amount,
        float(entry.power.value),
        entry.price.estimate or entry.power.estimate,
        tuple(sorted({entry.price.source, entry.power.source})),
    )
