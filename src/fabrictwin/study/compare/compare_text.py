"""A comparison as text for a terminal and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fabrictwin.base.units import PS_PER_S, format_size, format_time
from fabrictwin.study.compare.comparison import Comparison, OnFabric
from fabrictwin.study.compare.packet_measurements import Played
from fabrictwin.study.compare.phase_cut import PHASES
from fabrictwin.study.compare.verdict import Verdict, verdict
from fabrictwin.study.cost.cluster_cost import cost_data
from fabrictwin.study.jitter.jitter_text import steps_end


def _factor(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.4g}"


def _rows(found: Comparison) -> list[tuple[str, list[str]]]:
    """(what, one cell a fabric)."""
    fabrics = found.fabrics

    def each(name: str, of: Any) -> tuple[str, list[str]]:
        return name, [of(f) for f in fabrics]

    def counted(key: str) -> tuple[str, list[str]]:
        return each(
            {"drops": "drops in the cuts", "pauses": "pause frames", "marks": "ECN marks"}.get(
                key, "packets sent again"
            ),
            lambda f: "not modelled" if f.factors is None else f"{f.factors.total(key):,}",
        )

    rows = [
        each("step, p50", lambda f: format_time(f.steps.p50)),
        each("step, p95", lambda f: format_time(f.steps.p95)),
        each("step, p99", lambda f: format_time(f.steps.p99)),
        each("clean step", lambda f: format_time(f.clean_ps)),
        each("MFU", lambda f: "" if f.mfu is None else f"{f.mfu:.1%}"),
        each("tokens/s", lambda f: "" if f.tokens_per_s is None else f"{f.tokens_per_s:,.0f}"),
        each("exposed comm.", lambda f: f"{sum(f.exposed.values()):.1%}"),
    ]
    for size in sorted(next(iter(fabrics)).busbw_gbps):
        rows.append(each(f"busbw {format_size(size)}", lambda f, size=size: f"{f.busbw_gbps[size]:.4g} GB/s"))
    rows.append(each("empty message, wires", lambda f: format_time(f.latency_ps)))
    near = any(f.factors is not None and f.factors.of("neighbours") for f in fabrics)
    for phase in (*PHASES, *(("neighbours",) if near else ())):
        rows.append(
            each(
                f"packet/flow, {phase}",
                lambda f, phase=phase: (
                    "not modelled"
                    if f.factors is None or not f.factors.of(phase)
                    else " to ".join(
                        dict.fromkeys(_factor(v) for v in (min(f.factors.of(phase)), max(f.factors.of(phase))))
                    )
                ),
            )
        )
    rows += [counted(key) for key in ("drops", "pauses", "marks", "retransmitted")]
    rows += [
        each("busiest link", lambda f: f"{f.busiest_use:.1%}"),
        each("network, price", lambda f: f"{f.cost.network_purchase / 1e6:.4g} M{f.cost.bill.currency}"),
        each(
            "its range",
            lambda f: f"{f.network.low / 1e6:.3g}-{f.network.high / 1e6:.3g} M{f.cost.bill.currency}",
        ),
        each("switches needed", lambda f: f"{f.network.switches:,} of {f.network.built_switches:,}"),
        each("network, power", lambda f: f"{f.cost.network_draw_w / 1e3:.4g} kW"),
        each(
            "a million tokens",
            lambda f: "" if f.per_million_tokens is None else f"{f.per_million_tokens:.4g} {f.cost.bill.currency}",
        ),
        each(
            "energy a token",
            lambda f: "" if f.cost.joules_per_token is None else f"{f.cost.joules_per_token:.4g} J",
        ),
    ]
    return rows


def text(found: Comparison) -> str:
    """The table and the verdict."""
    rows = _rows(found)
    names = [f.name for f in found.fabrics]
    left = max(len(name) for name, _ in rows)
    widths = [max(len(names[i]), *(len(cells[i]) for _, cells in rows)) for i in range(len(names))]
    lines = [
        found.name,
        f"  {found.layout_line}",
        f"  {found.gpus:,} GPUs, {found.fidelity}, seed {found.seed}"
        + ("; jitter assumed" if found.assumed_jitter else ""),
        "",
        f"  {'':{left}}" + "".join(f"  {name:>{w}}" for name, w in zip(names, widths, strict=True)),
    ]
    lines += [
        f"  {name:{left}}" + "".join(f"  {cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
        for name, cells in rows
    ]
    if ends := steps_ends(found):
        lines += ["", *(f"  {end}" for end in ends)]
    if len(found.fabrics) > 1:
        lines += ["", *_turning_rows(found)]
    lines += ["", *_words(verdict(found))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _turning_rows(found: Comparison) -> list[str]:
    """Each input at half and at twice: the fastest, the cheapest, and how much dearer the next is."""
    rows = [("input", "at", "shortest step", "cheapest tokens", "next")]
    for name, at in found.answers_at.items():
        for factor, answer in at.items():
            much = "half" if factor < 1 else "twice"
            ahead = "" if answer.ahead is None else f"{answer.ahead:+.2%}"
            rows.append((name, much, answer.fastest, answer.cheapest or "not known", ahead))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return ["  " + "  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]


def steps_ends(found: Comparison) -> list[str]:
    """A sentence for each set of percentiles that are the greatest step drawn, with the fabrics it is so on."""
    fabrics: dict[str, list[str]] = {}
    for f in found.fabrics:
        if ends := steps_end(f.steps):
            fabrics.setdefault(ends, []).append(f.name)
    return [
        f"{ends} on {', '.join(names)}: the greatest of the steps drawn; rarer ones may be longer."
        for ends, names in fabrics.items()
    ]


def _words(found: Verdict) -> list[str]:
    lines = [found.answer]
    for head, items in (
        ("because", found.because),
        ("what would change it", found.would_change),
        ("what the twin does not know", found.unknown),
    ):
        if items:
            lines += [head, *(f"  - {item}" for item in items)]
    return lines


def _played(p: Played) -> dict[str, Any]:
    return {
        "phase": p.phase,
        "seed": p.seed,
        "packet_s": p.packet_ps / PS_PER_S,
        "flow_s": p.flow_ps / PS_PER_S,
        "factor": p.factor,
        "drops": p.drops,
        "pauses": p.pauses,
        "ecn_marks": p.marks,
        "retransmitted": p.retransmitted,
        "port_wait_s": p.wait_ps / PS_PER_S,
    }


def _fabric(f: OnFabric) -> dict[str, Any]:
    return {
        "fabric": f.name,
        "title": f.preset.title,
        "cluster": f.cluster_line,
        "link_rate_bps": f.preset.link_rate.value,
        "clean_step_s": f.clean_ps / PS_PER_S,
        "step_s": {key: getattr(f.steps, key) / PS_PER_S for key in ("mean", "p5", "p50", "p95", "p99")},
        "mfu": f.mfu,
        "tokens_per_s": f.tokens_per_s,
        "exposed": f.exposed,
        "busiest_link": {"link": f.busiest_link, "utilisation": f.busiest_use},
        "factors": None
        if f.factors is None
        else {
            "cut": f.factors.cut,
            "played": [_played(p) for p in f.factors.played],
            "control": f.factors.control or None,
            "without_control": [_played(p) for p in f.factors.uncontrolled],
            "exchange_in_step": f.exchanges,
        },
        "all_reduce_busbw_gb_per_s": {str(size): value for size, value in f.busbw_gbps.items()},
        "empty_message_s": f.latency_ps / PS_PER_S,
        "cost": cost_data(f.cost),
        "network_price": {
            "low": f.network.low,
            "high": f.network.high,
            "switches": f.network.switches,
            "switches_as_built": f.network.built_switches,
        },
    }


def data(found: Comparison) -> dict[str, Any]:
    """compare.json; units are in the keys."""
    said = verdict(found)
    return {
        "schema": 1,
        "name": found.name,
        "job": found.layout_line,
        "gpus": found.gpus,
        "fidelity": found.fidelity,
        "seed": found.seed,
        "jitter_assumed": found.assumed_jitter,
        "fabrics": [_fabric(f) for f in found.fabrics],
        "answers_at": {
            name: {f"{factor:g}": asdict(answer) for factor, answer in at.items()}
            for name, at in found.answers_at.items()
        },
        "verdict": {
            "answer": said.answer,
            "because": list(said.because),
            "would_change": list(said.would_change),
            "unknown": list(said.unknown),
        },
    }
