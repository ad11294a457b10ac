"""A comparison as one page: the verdict, a table that sorts, plots of steps, exposure, bandwidth and cost."""

from __future__ import annotations

from html import escape

from fabrictwin.base.units import format_size, format_time
from fabrictwin.report.page import Axis, Cell, Series, bars, document, lines, table, tiles
from fabrictwin.study.compare.comparison import Comparison, OnFabric
from fabrictwin.study.compare.vary import Curve, refusals
from fabrictwin.study.compare.verdict import verdict


def _time(ps: float) -> str:
    return format_time(round(ps)).replace(" us", " µs")


def _list(head: str, items: tuple[str, ...]) -> str:
    if not items:
        return ""
    return f"<h3>{escape(head)}</h3><ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def page(found: Comparison, curves: tuple[Curve, ...] = ()) -> str:
    """The page as text."""
    said, best, cheap = verdict(found), found.best, found.cheapest
    currency = best.cost.bill.currency
    body = "\n".join(
        [
            "<header>",
            f"<h1>{escape(found.name)}: {len(found.fabrics)} fabrics</h1>",
            f'<p class="what">{escape(found.layout_line)}</p>',
            tiles(
                [
                    ("Shortest step", _time(best.steps.p50), best.name),
                    ("p95 of it", _time(best.steps.p95), f"clean {_time(best.clean_ps)}"),
                    (
                        "Cheapest tokens",
                        f"{cheap.per_million_tokens:.3g} {currency}" if cheap.per_million_tokens else "not known",
                        f"a million, {cheap.name}",
                    ),
                    ("GPUs", f"{found.gpus:,}", f"at {found.fidelity}"),
                ]
            ),
            f'<p class="published">{escape(said.answer)}</p></header>',
            '<div class="two"><section>',
            _list("Because", said.because),
            _list("What would change it", said.would_change),
            "</section><section>",
            _list("What the twin does not know", said.unknown),
            "</section></div>",
            "<h2>Side by side</h2>",
            _table(found),
            '<div class="two"><section><h2>Step, median</h2>',
            bars(
                [(f.name, f.steps.p50, _time(f.steps.p50)) for f in found.fabrics], label="median step by fabric"
            ),
            "</section><section><h2>Communication not hidden</h2>",
            bars(
                [(f.name, sum(f.exposed.values()), f"{sum(f.exposed.values()):.1%}") for f in found.fabrics],
                label="exposed communication by fabric",
            ),
            "</section><section><h2>All-reduce</h2>",
            lines(
                [
                    Series(f.name, tuple((k / 2**20, v) for k, v in sorted(f.busbw_gbps.items())))
                    for f in found.fabrics
                ],
                Axis("MiB", logarithmic=True),
                Axis("bus bandwidth, GB/s", zero=True),
                label="all-reduce bus bandwidth by size",
            ),
            "</section><section><h2>A million tokens</h2>",
            bars(
                [
                    (f.name, f.per_million_tokens or 0.0, f"{f.per_million_tokens or 0:.4g} {currency}")
                    for f in found.fabrics
                ],
                label="cost of a million tokens by fabric",
            ),
            "</section></div>",
            "<h2>Packet by packet</h2>",
            _factors(found),
            *(_curve(curve) for curve in curves),
        ]
    )
    return document(f"{found.name}: fabrics", body, f"seed {found.seed}")


def _table(found: Comparison) -> str:
    currency = found.best.cost.bill.currency
    sizes = sorted(found.fabrics[0].busbw_gbps)
    heads = [
        "fabric", "p50", "p95", "p99", "MFU", "tokens/s", "exposed",
        *(f"busbw {format_size(size)}" for size in sizes), "empty message, wires", "busiest link", "network price",
        f"{currency}/M tokens", "J/token",
    ]  # fmt: skip

    def row(f: OnFabric) -> list[Cell]:
        exposed = sum(f.exposed.values())
        return [
            f.name,
            (_time(f.steps.p50), f.steps.p50),
            (_time(f.steps.p95), f.steps.p95),
            (_time(f.steps.p99), f.steps.p99),
            ("" if f.mfu is None else f"{f.mfu:.1%}", f.mfu),
            ("" if f.tokens_per_s is None else f"{f.tokens_per_s:,.0f}", f.tokens_per_s),
            (f"{exposed:.1%}", exposed),
            *((f"{f.busbw_gbps[size]:.4g}", f.busbw_gbps[size]) for size in sizes),
            (_time(f.latency_ps), f.latency_ps),
            (f"{f.busiest_use:.1%}", f.busiest_use),
            (f"{f.cost.network_purchase / 1e6:.4g} M", f.cost.network_purchase),
            (f"{f.per_million_tokens or 0:.4g}", f.per_million_tokens),
            (f"{f.cost.joules_per_token or 0:.4g}", f.cost.joules_per_token),
        ]

    return table(heads, [row(f) for f in found.fabrics])


def _factors(found: Comparison) -> str:
    heads = ["fabric", "phase", "seed", "packet", "flow", "factor", "drops", "pauses", "ECN marks", "sent again"]
    rows: list[list[Cell]] = []
    for f in found.fabrics:
        if f.factors is None:
            rows.append([f.name, "not modelled", *[("", None)] * 8])
            continue
        for p in f.factors.played:
            rows.append(
                [
                    f.name,
                    p.phase,
                    (str(p.seed), p.seed),
                    (_time(p.packet_ps), p.packet_ps),
                    (_time(p.flow_ps), p.flow_ps),
                    (f"{p.factor:.3f}", p.factor),
                    (f"{p.drops:,}", p.drops),
                    (f"{p.pauses:,}", p.pauses),
                    (f"{p.marks:,}", p.marks),
                    (f"{p.retransmitted:,}", p.retransmitted),
                ]
            )
    cut = next((f.factors.cut for f in found.fabrics if f.factors is not None), "")
    return (f'<p class="soft">{escape(cut)}</p>' if cut else "") + table(heads, rows)


def _curve(curve: Curve) -> str:
    drawn = lines(
        [Series(name, points) for name, points in curve.series if points],
        Axis(curve.key, logarithmic=curve.logarithmic),
        Axis("step, s"),
        label=f"step by {curve.key}",
    )
    heads = [curve.key, *(name for name, _ in curve.series)]
    rows: list[list[Cell]] = []
    for i, value in enumerate(curve.values):
        cells: list[Cell] = [(curve.labels[i], value)]
        for _, points in curve.series:
            found = dict(points).get(value)
            cells.append((f"{found:.4g} s", found) if found is not None else ("–", None))
        rows.append(cells)
    why = "".join(f"<li>{escape(line)}</li>" for line in refusals(curve))
    return f"<h2>Step by {escape(curve.key)}</h2>{drawn}{table(heads, rows)}" + (f"<ul>{why}</ul>" if why else "")
