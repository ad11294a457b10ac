"""A comparison in words. Every sentence is made from figures of the comparison, which stand beside it."""

from __future__ import annotations

from operator import itemgetter

from fabrictwin.base.records import record
from fabrictwin.base.units import format_money, format_rate, format_time
from fabrictwin.study.compare.comparison import Comparison, OnFabric

CLOSE = 0.02  # steps within this are called alike: no more is claimed than the engines agree to


@record
class Verdict:
    """Which fabric, by how much and why; what would change it; what the twin does not know."""

    answer: str
    because: tuple[str, ...]
    would_change: tuple[str, ...]
    unknown: tuple[str, ...]


def _exposed(fabric: OnFabric) -> float:
    return sum(fabric.exposed.values())


def verdict(found: Comparison) -> Verdict:
    """The comparison's answer."""
    best, rest = found.best, [f for f in found.fabrics if f is not found.best]
    if not rest:
        only = f"{best.name}: a step of {format_time(best.steps.p50)}; nothing else was compared."
        return Verdict(only, _of_control(found), (), (*_not_in_steps(found), *_unknown(found)))
    alike = [f for f in rest if f.steps.p50 <= best.steps.p50 * (1 + CLOSE)]
    slower = sorted((f for f in rest if f not in alike), key=lambda f: f.steps.p50)
    answer = f"{best.name} has the shortest median step, {format_time(best.steps.p50)}"
    if alike:
        names = ", ".join(f.name for f in alike)
        answer += f"; {names} {'is' if len(alike) == 1 else 'are'} within {CLOSE:.0%} of it"
    if slower:
        last = slower[-1]
        answer += f"; the slowest, {last.name}, takes {last.steps.p50 / best.steps.p50 - 1:.1%} longer"
    answer += "."
    cheap = found.cheapest
    if cheap.per_million_tokens is not None and best.per_million_tokens is not None:
        if cheap is best:
            answer += f" Its tokens are also the cheapest, {_money(best)} a million."
        else:
            more = best.per_million_tokens / cheap.per_million_tokens - 1
            answer += (
                f" {cheap.name} trains the cheapest tokens, {_money(cheap)} a million; "
                f"{best.name}'s cost {more:+.1%}."
            )
    because = (*_because(best, slower or alike), *_of_control(found))
    return Verdict(answer, because, _would_change(found), (*_not_in_steps(found), *_unknown(found)))


def _money(fabric: OnFabric) -> str:
    assert fabric.per_million_tokens is not None
    return f"{fabric.per_million_tokens:.3g} {fabric.cost.bill.currency}"


def _because(best: OnFabric, others: list[OnFabric]) -> tuple[str, ...]:
    """The mechanisms whose figures differ most between the best and the one farthest from it."""
    other = others[-1]
    reasons: list[tuple[float, str]] = []
    a, b = best.preset.link_rate.value, other.preset.link_rate.value
    if a != b:
        reasons.append((abs(a / b - 1), f"links: {format_rate(a)} against {format_rate(b)}"))
    exposed = _exposed(other) * other.clean_ps - _exposed(best) * best.clean_ps
    if abs(exposed) > 0.002 * best.clean_ps:
        reasons.append(
            (
                abs(exposed) / best.clean_ps,
                f"communication that compute does not hide: {_exposed(best):.1%} of the step on {best.name}, "
                f"{_exposed(other):.1%} on {other.name}",
            )
        )
    near = best.factors is not None and bool(best.factors.of("neighbours"))
    for phase, what in (
        ("neighbours" if near else "ring", "rings"),
        ("exchange", "an all-to-all with hot receivers"),
    ):
        if best.factors is None or other.factors is None:
            continue
        mine, theirs = best.factors.of(phase), other.factors.of(phase)  # type: ignore[arg-type]
        if mine and theirs and abs(max(theirs) - max(mine)) > 0.005:
            reasons.append(
                (
                    abs(max(theirs) - max(mine)),
                    f"{what} packet by packet: {best.factors.text(phase)} times the flow engine's time on "  # type: ignore[arg-type]
                    f"{best.name}, {other.factors.text(phase)} on {other.name}",  # type: ignore[arg-type]
                )
            )
    if best.factors is not None and other.factors is not None:
        for key, what in (
            ("drops", "dropped packets"),
            ("pauses", "pause frames"),
            ("retransmitted", "packets sent again"),
        ):
            mine_n, theirs_n = best.factors.total(key), other.factors.total(key)
            if mine_n < theirs_n:
                reasons.append((1e-3, f"{what} in the cuts: {mine_n:,} against {theirs_n:,}"))
    if best.latency_ps < other.latency_ps:
        least, more = format_time(best.latency_ps), format_time(other.latency_ps)
        reasons.append((1e-4, f"on adapters and wires an empty message takes {least} against {more}"))
    reasons.sort(key=lambda reason: -reason[0])
    return tuple(text for _, text in reasons[:3])


_WHAT = {"ring": "a ring of the cut", "exchange": "an exchange of the cut", "neighbours": "a ring of neighbours"}


def _of_control(found: Comparison) -> tuple[str, ...]:
    """Sentences on phases of the cuts that are slow: by congestion control, or without it too."""
    lines = []
    for f in found.fabrics:
        for with_it, without in () if f.factors is None else f.factors.without_control():
            assert f.factors is not None
            figures = (
                f"{f.name}, {_WHAT[with_it.phase]}: {with_it.factor:.3g} times the flow engine's time with its "
                f"control, {f.factors.control}, {without.factor:.3g} without"
            )
            share = (with_it.factor - without.factor) / max(with_it.factor - 1, 1e-9)
            if share > 0.5:
                lines.append(f"{figures}: the control is the cause, not the technology")
            elif share > 0.1:
                lines.append(f"{figures}: the control is a part of it")
            else:
                lines.append(f"{figures}: the control is not the cause")
    return tuple(lines)


def _not_in_steps(found: Comparison) -> tuple[str, ...]:
    """Phases that the cuts found slow and that the job's steps do not have."""
    lines = []
    for f in found.fabrics:
        slow = () if f.factors is None else f.factors.of("exchange")
        if slow and max(slow) > 1 + CLOSE and not f.exchanges:
            assert f.factors is not None
            lines.append(
                f"{f.name}: that an exchange takes longer there than the flow engine says (factor "
                f"{f.factors.text('exchange')}) is not in its step, as the job has no all-to-all between hosts"
            )
    return tuple(lines)


def _would_change(found: Comparison) -> tuple[str, ...]:
    """Thresholds that follow from the figures."""
    best, lines = found.best, _apart(found)
    for other in found.fabrics:
        if other is best or other.per_million_tokens is None or best.per_million_tokens is None:
            continue
        if other.per_million_tokens > best.per_million_tokens:
            # the price of its network at which its tokens cost as much
            whole = other.cost.total
            room = whole * (1 - best.per_million_tokens / other.per_million_tokens)
            if 0 < room < other.cost.network_purchase:
                lines.append(
                    f"{other.name} would cost as much a token as {best.name} if its network were bought for "
                    f"{format_money(room, other.cost.bill.currency)} less, "
                    f"{room / other.cost.network_purchase:.0%} of its price"
                )
        elif other is found.cheapest:
            slower = other.steps.p50 / best.steps.p50
            lines.append(
                f"by money {other.name} stays ahead while its step is less than "
                f"{best.per_million_tokens / other.per_million_tokens * slower - 1:.1%} longer than {best.name}'s"
            )
    return (*lines, *_of_prices(found), *_turning(found))


def _of_prices(found: Comparison) -> list[str]:
    """Networks whose prices lie within each other's range, those of one range together."""
    alike: dict[tuple[float, float], list[OnFabric]] = {}
    for fabric in found.fabrics:
        if fabric.network.high > 0:
            alike.setdefault((fabric.network.low, fabric.network.high), []).append(fabric)
    lines, met = [], 0.0
    groups: list[list[list[OnFabric]]] = []  # of ranges that overlap one after the other
    for (low, high), fabrics in sorted(alike.items()):
        if groups and low <= met:
            groups[-1].append(fabrics)
        else:
            groups.append([fabrics])
        met = max(met, high)
    for group in groups:
        if len(group) > 1:
            said = "; ".join(f"{', '.join(f.name for f in fabrics)} {_span(fabrics[0])}" for fabrics in group)
            lines.append(f"which of these networks is cheaper is not known, as their prices overlap: {said}")
    return lines


def _span(fabric: OnFabric) -> str:
    currency = fabric.cost.bill.currency
    return f"{format_money(fabric.network.low, currency)} to {format_money(fabric.network.high, currency)}"


def _turning(found: Comparison) -> list[str]:
    """Inputs that make another fabric the cheapest or the fastest at half or at twice, and those that do not."""
    if len(found.fabrics) < 2:
        return []
    lines, stays = [], []
    by_money = found.cheapest.name if found.cheapest.per_million_tokens is not None else None
    for name, at in found.answers_at.items():
        turned = False
        for factor, answer in at.items():
            much = "half" if factor < 1 else "twice"
            if answer.cheapest not in (None, by_money):
                turned = True
                lines.append(f"with {name} at {much} {answer.cheapest} trains the cheapest tokens, not {by_money}")
            if _faster(found, name, factor, answer.fastest):
                turned = True
                lines.append(
                    f"with {name} at {much} {answer.fastest} has the shortest median step, not {found.best.name}"
                )
        if not turned:
            stays.append(name)
    if stays:
        lines.append(f"each of these at half and at twice changes neither answer: {', '.join(stays)}")
    return lines


def _faster(found: Comparison, name: str, factor: float, fastest: str) -> bool:
    """Return true where another fabric is ahead there by more than steps called alike."""
    there = {f.name: f.steps_at[name][factor] for f in found.fabrics if name in f.steps_at}
    best = there.get(found.best.name)
    return best is not None and fastest in there and there[fastest] * (1 + CLOSE) < best


def _apart(found: Comparison) -> list[str]:
    """Phases of the cuts that tell fabrics apart, whether or not the job has them, by the slowest seed."""
    lines = []
    for phase, what in (
        ("exchange", "exchanges between experts on different hosts, some of them hot: one"),
        ("ring", "ranks scattered over leaves: a ring"),
    ):
        took = {
            f.name: max(p.packet_ps for p in f.factors.played if p.phase == phase)
            for f in found.fabrics
            if f.factors is not None and f.factors.of(phase)  # type: ignore[arg-type]
        }
        if took and max(took.values()) > 1.1 * min(took.values()):
            each = ", ".join(
                f"{format_time(ps)} on {name}" for name, ps in sorted(took.items(), key=itemgetter(1))
            )
            lines.append(f"{what} of the cut takes {each}")
    return lines


def _unknown(found: Comparison) -> tuple[str, ...]:
    lines = []
    missing = [f.name for f in found.fabrics if f.factors is None]
    if missing:
        lines.append(f"what control and loss cost on {', '.join(missing)}: not modelled")
    measured = next((f.factors for f in found.fabrics if f.factors is not None), None)
    if measured is not None:
        lines.append(
            f"factors hold for the cut they were measured on ({measured.cut}); at other loads they differ"
        )
    if found.assumed_jitter:
        lines.append("how uneven your hosts are: the jitter is assumed, a jitter section in the spec replaces it")
    assumed = sorted({i.name for f in found.fabrics for i in f.cost.bill.items if i.estimate})
    if assumed:
        lines.append(f"what you pay: prices or power of {', '.join(assumed)} are assumptions")
    unpriced = sorted({name for f in found.fabrics for name in f.cost.bill.unpriced})
    if unpriced:
        lines.append(
            f"prices of {', '.join(unpriced)}: without those of hosts no cost of a token is given; "
            "a price book has room for them"
        )
    lines.append("how much more or less people one fabric asks for than another: all are given as many")
    return tuple(lines)
