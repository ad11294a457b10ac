"""InfiniBand's generations side by side: years, codes, rates, and published latencies of adapters."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.units import PS_PER_US, format_rate, format_time
from fabrictwin.catalog.answers import infiniband, names, sources
from fabrictwin.catalog.link_speeds import Infiniband

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
