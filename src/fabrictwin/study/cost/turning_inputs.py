"""Inputs that turn an answer: each at half and at twice, and which fabric is then the fastest and the cheapest.

Prices that are assumed, what a site pays (of its overhead the part above 1, of the hosts' power at most all),
people and time lost by interruptions change what a token costs; what was sampled anew (`steps_at`) changes both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from fabrictwin.base.records import record
from fabrictwin.catalog.figures import Figure
from fabrictwin.catalog.price_book import Money, PriceBook
from fabrictwin.study.cost.cluster_cost import Cost, cost
from fabrictwin.study.cost.price_ranges import FACTORS, assumed, changed

SAME = 1e-5  # costs of a token within this are one cost


@record
class Answer:
    """Fabrics with the shortest median step and the cheapest tokens, and how much dearer the next one's are.

    One whose tokens cost the same is not the next.
    """

    fastest: str
    cheapest: str | None = None
    ahead: float | None = None


def answers(
    costs: Mapping[str, Cost],
    book: PriceBook,
    steps: Mapping[str, float],
    steps_at: Mapping[str, Mapping[str, Mapping[float, float]]] | None = None,
) -> dict[str, dict[float, Answer]]:
    """By input: the answer at half and at twice of it.

    `steps` are median steps by fabric, `steps_at` those by fabric, input and factor.
    """
    found: dict[str, dict[float, Answer]] = {}
    prices = sorted({item.name for one in costs.values() for item in one.bill.items if assumed(item, book)})
    for name in prices:
        found[f"the price of {name}"] = {
            factor: _answer({fabric: changed(one, name, factor) for fabric, one in costs.items()}, steps)
            for factor in FACTORS
        }
    for name, altered in _SITE.items():
        found[name] = {
            factor: _answer({fabric: _under(one, altered(book, factor)) for fabric, one in costs.items()}, steps)
            for factor in FACTORS
        }
    for name in dict.fromkeys(name for of in (steps_at or {}).values() for name in of):
        found[name] = {
            factor: _with_steps(
                costs, steps, {f: of[name][factor] for f, of in (steps_at or {}).items() if name in of}
            )
            for factor in FACTORS
        }
    return found


def _with_steps(costs: Mapping[str, Cost], steps: Mapping[str, float], there: Mapping[str, float]) -> Answer:
    tokens = {}
    for fabric, one in costs.items():
        now = one.per_million_tokens
        tokens[fabric] = None if now is None else now * there.get(fabric, steps[fabric]) / steps[fabric]
    return _answer(tokens, {**steps, **there})


def _answer(tokens: Mapping[str, float | None], steps: Mapping[str, float]) -> Answer:
    fastest = min(steps, key=lambda fabric: (steps[fabric], fabric))
    known = sorted((value, fabric) for fabric, value in tokens.items() if value is not None)
    if not known:
        return Answer(fastest)
    dearer = [value / known[0][0] - 1 for value, _ in known if value > known[0][0] * (1 + SAME)]
    return Answer(fastest, known[0][1], dearer[0] if dearer else None)


def _under(one: Cost, book: PriceBook) -> float | None:
    return cost(one.bill, book, years=one.years, tokens_per_s=one.tokens_per_s).per_million_tokens


def _figure(figure: Figure[Any], value: object) -> Figure[Any]:
    return figure.model_copy(update={"value": value})


def _site(name: str, value: Callable[[Any, float], object]) -> Callable[[PriceBook, float], PriceBook]:
    def altered(book: PriceBook, factor: float) -> PriceBook:
        figure = getattr(book.site, name)
        site = book.site.model_copy(update={name: _figure(figure, value(figure.value, factor))})
        return book.model_copy(update={"site": site})

    return altered


def _pay(book: PriceBook, factor: float) -> PriceBook:
    people = {
        name: role.model_copy(update={"pay": _figure(role.pay, _money(role.pay.value, factor))})
        for name, role in book.people.items()
    }
    return book.model_copy(update={"people": people})


def _money(value: Money, factor: float) -> Money:
    return value._replace(amount=value.amount * factor)


_SITE: dict[str, Callable[[PriceBook, float], PriceBook]] = {
    "electricity": _site("electricity", _money),
    "the site's overhead": _site("overhead", lambda v, f: 1 + (v - 1) * Fraction(f)),
    "the hosts' mean power": _site("draw", lambda v, f: min(Fraction(1), v * Fraction(f))),
    "upkeep": _site("upkeep", lambda v, f: v * Fraction(f)),
    "people": _pay,
    "time lost by interruptions": _site("lost", lambda v, f: round(v * f)),
}
