"""Generations side by side: InfiniBand's years, codes, rates and adapters; the power of servers by their GPUs."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.units import PS_PER_US, format_rate, format_time
from fabrictwin.catalog.answers import infiniband, names, sources
from fabrictwin.catalog.gpus import ServerPower
from fabrictwin.catalog.links.link_speeds import Infiniband

WIDTH = 4


def generations_data() -> list[dict[str, Any]]:
    """Return one mapping a generation, oldest first, units in the keys; None where no source was found."""
    return [_data(infiniband(name)) for name in names("infiniband")]


def _data(one: Infiniband) -> dict[str, Any]:
    signalling = one.lane_rate.value
    return {
        "generation": one.name,
        "year": None if one.year is None else one.year.value,
        "line_code": one.line_code.text,
        "signalling_gbps": signalling / 1e9,
        "lane_gbps": round(one.rate_bps(1) / 1e9, 4),
        "link_gbps": round(one.rate_bps(WIDTH) / 1e9, 4),
        "fec_ns": one.fec_latency_ps(WIDTH) / 1e3 if one.fec is not None else None,
        "adapters": [
            {
                "adapter": name,
                "latency_us": figure.value / PS_PER_US,
                "note": figure.note,
                "source": sources()[figure.source].title,
            }
            for name, figure in one.adapters.items()
        ],
    }


def generations_rows() -> list[tuple[str, ...]]:
    """Return the table as text, its heading first."""
    rows: list[tuple[str, ...]] = [
        ("", "year", "line code", "signalling", "lane", f"{WIDTH}x", "FEC", "adapters, as published")
    ]
    for name in names("infiniband"):
        one = infiniband(name)
        said = [
            f"{adapter} {'below ' if 'less than' in figure.note else ''}{format_time(figure.value)}"
            for adapter, figure in one.adapters.items()
        ]
        rows.append(
            (
                name,
                "" if one.year is None else str(one.year.value),
                one.line_code.text,
                format_rate(one.lane_rate.value),
                format_rate(one.rate_bps(1)),
                format_rate(one.rate_bps(WIDTH)),
                "" if one.fec is None else format_time(one.fec_latency_ps(WIDTH)),
                ", ".join(said),
            )
        )
    return rows


def power_data(entries: list[ServerPower]) -> list[dict[str, Any]]:
    """Return one mapping a server, units in the keys."""
    return [
        {
            "server": one.name,
            "title": one.title,
            "gpus": one.gpus.value,
            "most_w_per_gpu": round(one.most.value / one.gpus.value, 1),
            "rack_gpus": one.rack_gpus.value,
            "rack_kw": round(one.rack_watts / 1e3, 2),
            "estimate": one.most.estimate or one.rack_gpus.estimate,
            "measured": [
                {
                    "workload": name,
                    "watts": measured.power.value,
                    "tokens_per_s": measured.rate.value,
                    "tokens_per_joule": round(measured.tokens_per_joule, 4),
                    "joules_per_token": round(1 / measured.tokens_per_joule, 4),
                    "source": measured.power.source,
                }
                for name, measured in one.measured.items()
            ],
        }
        for one in entries
    ]


def power_rows(entries: list[ServerPower]) -> list[tuple[str, ...]]:
    """Return the table as text, its heading first; an assumed rack is marked."""
    rows: list[tuple[str, ...]] = [
        ("", "a GPU", "a rack", "GPUs", "measured serving", "power", "tokens/s", "a joule")
    ]
    for one in entries:
        mark = " (assumed)" if one.most.estimate or one.rack_gpus.estimate else ""
        head = (
            one.title,
            f"{one.most.value / one.gpus.value / 1e3:.2f} kW",
            f"{one.rack_watts / 1e3:.1f} kW{mark}",
            str(one.rack_gpus.value),
        )
        served = [
            (
                name,
                f"{measured.power.value} W",
                str(measured.rate.value),
                f"{measured.tokens_per_joule:.3g} tokens",
            )
            for name, measured in one.measured.items()
        ] or [("none read", "", "", "")]
        rows += [(*(head if not i else ("",) * len(head)), *cells) for i, cells in enumerate(served)]
    return rows
