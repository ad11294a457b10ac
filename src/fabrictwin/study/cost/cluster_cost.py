"""What a cluster costs to buy and to run, and what a trained token of a job costs there.

    purchase    the bill of materials
    power       hosts at their mean draw, network at its most (links draw what they draw, busy or idle), times the
                site's overhead
    running     electricity of a year, upkeep as a share of the purchase, people by the GPUs that one looks after
    down time   interruptions by the job's GPUs, each times what is lost after one: a share of all time
    a token     purchase over `years` in equal parts and running, divided by the tokens that are trained meanwhile

Left out: interest, taxes, buildings, storage, the resale of old equipment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S, format_money, format_power
from fabrictwin.catalog.price_book import PriceBook
from fabrictwin.study.cost.bill_of_materials import Bill

HOURS_A_YEAR = 8766.0
SECONDS_A_YEAR = HOURS_A_YEAR * 3600


@record
class Staff:
    """People who keep a cluster, by role: how many and what all of them are paid a year; and its down time."""

    count: Mapping[str, float]
    pay: Mapping[str, float]
    down: float  # share of all time in which the job does not train

    @property
    def pay_a_year(self) -> float:
        return sum(self.pay.values())


@record
class Cost:
    """In the bill's currency; of the whole cluster unless said otherwise."""

    bill: Bill
    years: float
    draw_w: float  # mean, site overhead included
    network_draw_w: float
    electricity_a_year: float
    upkeep_a_year: float
    staff: Staff
    tokens_per_s: float | None = None  # of the job, where there is one, while it trains

    @property
    def purchase(self) -> float:
        return self.bill.total()

    @property
    def network_purchase(self) -> float:
        """Switches and cables."""
        return self.bill.total("switch") + self.bill.total("cable")

    @property
    def running_a_year(self) -> float:
        return self.electricity_a_year + self.upkeep_a_year + self.staff.pay_a_year

    @property
    def total(self) -> float:
        """Purchase, and running for all years."""
        return self.purchase + self.years * self.running_a_year

    @property
    def gpu_hour(self) -> float:
        return self.total / (self.years * HOURS_A_YEAR * self.bill.gpus) if self.bill.gpus else 0.0

    @property
    def per_million_tokens(self) -> float | None:
        if not self.tokens_per_s:
            return None
        return self.total / (self.years * SECONDS_A_YEAR * self.tokens_per_s * (1 - self.staff.down)) * 1e6

    @property
    def joules_per_token(self) -> float | None:
        return self.draw_w / self.tokens_per_s if self.tokens_per_s else None


def cost(bill: Bill, book: PriceBook, *, years: float = 4.0, tokens_per_s: float | None = None) -> Cost:
    """Cost of a bill under a price book. `years` is how long the equipment is used."""
    site = book.site
    overhead, draw = float(site.overhead.value), float(site.draw.value)
    network_w = (bill.watts("switch") + bill.watts("cable")) * overhead
    draw_w = bill.watts("host") * draw * overhead + network_w
    return Cost(
        bill=bill,
        years=years,
        draw_w=draw_w,
        network_draw_w=network_w,
        electricity_a_year=draw_w / 1000 * HOURS_A_YEAR * site.electricity.value.amount,
        upkeep_a_year=bill.total() * float(site.upkeep.value),
        staff=_staff(bill, book),
        tokens_per_s=tokens_per_s,
    )


def _staff(bill: Bill, book: PriceBook) -> Staff:
    """The book's people for so many GPUs, and the share of time that interruptions of a job on all take."""
    count = {name: bill.gpus / role.looks_after.value for name, role in book.people.items()}
    rate = book.site.interruptions.value
    a_day = rate.a_day({"GPU": bill.gpus, "job": 1}.get(rate.device, bill.count(rate.device)))
    lost = a_day * book.site.lost.value / PS_PER_S / 86400
    pay = {name: count[name] * role.pay.value.amount for name, role in book.people.items()}
    return Staff(count, pay, lost / (1 + lost))


def without_hosts(one: Cost) -> Cost:
    """The cost with no tokens where a host has no price: what is left is the network's, and no token's."""
    return one if one.bill.hosts_priced else replace(one, tokens_per_s=None)


def cost_data(found: Cost) -> dict[str, Any]:
    """A cost as plain data; units are in the keys, money is in `currency`."""
    bill = found.bill
    return {
        "currency": bill.currency,
        "gpus": bill.gpus,
        "years": found.years,
        "items": [
            {
                "kind": item.kind,
                "name": item.name,
                "title": item.title,
                "count": item.count,
                "price": item.price,
                "power_w": item.watts,
                "assumed": item.estimate,
                "sources": list(item.sources),
            }
            for item in bill.items
        ],
        "without_price": list(bill.unpriced),
        "purchase": found.purchase,
        "network_purchase": found.network_purchase,
        "network_share": found.network_purchase / found.purchase if found.purchase else None,
        "mean_power_w": found.draw_w,
        "network_power_w": found.network_draw_w,
        "electricity_a_year": found.electricity_a_year,
        "upkeep_a_year": found.upkeep_a_year,
        "people": {
            name: {"count": found.staff.count[name], "pay_a_year": pay} for name, pay in found.staff.pay.items()
        },
        "down_time": found.staff.down,
        "total": found.total,
        "gpu_hour": found.gpu_hour if bill.hosts_priced else None,
        "tokens_per_s": found.tokens_per_s,
        "per_million_tokens": found.per_million_tokens,
        "joules_per_token": found.joules_per_token,
    }


def cost_text(found: Cost) -> str:
    """The bill and what it comes to, for a terminal. `*` marks what rests on an assumption."""
    bill, money = found.bill, found.bill.currency
    rows = [("", "what", "each", "together", "power at most")]
    for item in bill.items:
        each = "no price" if item.price is None else format_money(item.price, money)
        whole = "" if item.price is None else format_money(item.price * item.count, money)
        power = "" if item.watts is None else format_power(item.watts * item.count)
        rows.append((f"{item.count:,}", item.title, each + ("*" if item.estimate else ""), whole, power))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [
        f"{row[0]:>{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  "
        f"{row[4]:>{widths[4]}}".rstrip()
        for row in rows
    ]
    share = f", the network {found.network_purchase / found.purchase:.1%} of it" if found.purchase else ""
    network_power = f", the network {found.network_draw_w / found.draw_w:.1%} of it" if found.draw_w else ""
    lines += [
        "",
        f"purchase          {format_money(found.purchase, money)}{share}",
        f"power, mean       {format_power(found.draw_w)} with the site's overhead{network_power}",
        f"running a year    {format_money(found.running_a_year, money)}: electricity "
        f"{format_money(found.electricity_a_year, money)}, upkeep {format_money(found.upkeep_a_year, money)}, "
        f"people {format_money(found.staff.pay_a_year, money)}",
        *(
            f"people            {found.staff.count[name]:.3g} {name}, {format_money(pay, money)} a year"
            for name, pay in found.staff.pay.items()
        ),
        f"down time         {found.staff.down:.2%} of all time: interruptions of a job on all GPUs",
        f"over {found.years:g} years      {format_money(found.total, money)}"
        + (f", {found.gpu_hour:.2f} {money} a GPU and hour" if bill.hosts_priced else ""),
    ]
    if found.per_million_tokens is not None and found.joules_per_token is not None:
        lines.append(
            f"the job           {found.per_million_tokens:.3g} {money} a million tokens, "
            f"{found.joules_per_token:.3g} J a token"
        )
    if any(item.estimate for item in bill.items):
        lines.append("* rests on an assumption: `fabrictwin cost --sources` names each figure's source")
    if bill.unpriced:
        lines.append(f"without a price, and left out: {', '.join(bill.unpriced)}")
    if not bill.hosts_priced:
        lines.append(
            "what GPUs and tokens cost is not said without the price of hosts: a price book has room for it"
        )
    return "\n".join(lines) + "\n"


def sources_text(book: PriceBook) -> str:
    """Every figure of a price book with where it comes from."""
    from fabrictwin.catalog.entry_kinds import figures

    rows = [("figure", "value", "", "source", "note")]
    for key, figure in figures(book):
        text = getattr(figure, "text", "")
        rows.append((key, text, "*" if figure.estimate else "", figure.source, figure.note))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()
        + (f"  {row[4]}" if row[4] else "")
        + "\n"
        for row in rows
    )
