"""Sets that were tried as a table, and the good one as lines of a spec."""

from __future__ import annotations

from typing import Any

from fabrictwin.study.sweep.point import FAILED
from fabrictwin.study.tune.dcqcn_tuning import CLOSE, FIGURES, Tried, Tuned

SHOWN = 12


def text(found: Tuned) -> str:
    """The best sets, those without DCQCN, and the good one."""
    good = found.good
    played = sorted((one for one in found.tried if not one.failed), key=lambda one: one.row["p99_us"])
    shown = [one for one in played if one in played[:SHOWN] or one.name in _names(found)]
    lines = [
        f"  {'set':12}" + "".join(f"{head:>14}" for head in ("p99 us", "mean us", "end us", "paused us", "marks"))
    ]
    for one in shown:
        row = one.row
        cells = [f"{row[key]:,.1f}" for key in FIGURES[:4]] + [f"{row['ecn_marked']:,}"]
        lines.append(f"  {one.name:12}" + "".join(f"{cell:>14}" for cell in cells))
    lines += [f"  {one.name:12}  {one.row[FAILED]}" for one in found.tried if one.failed]
    left = len(played) - len(shown)
    if left > 0:
        lines.append(f"  and {left} more with a longer p99")
    lines += ["", *_advice(found, good)]
    return "\n".join(lines) + "\n"


def _names(found: Tuned) -> set[str]:
    return {one.name for one in found.tried if not one.name.startswith("drawn")}


def _advice(found: Tuned, good: Tried) -> list[str]:
    by = {one.name: one for one in found.tried if not one.failed}
    lines = [
        f"{good.name} is good: p99 {good.row['p99_us']:,.1f} us, ports paused for {good.row['pause_us']:,.1f} us "
        f"in all; of the sets of DCQCN within {CLOSE:.0%} of the shortest p99 the one with the least pause."
    ]
    bare = by.get("pfc-only")
    if bare is not None:
        ratio = good.row["p99_us"] / bare.row["p99_us"]
        lines.append(f"Flow control alone: p99 {bare.row['p99_us']:,.1f} us, {1 / ratio:.2f} times that.")
    lines += ["", "run:", "  packet:"]
    lines += [f"    {key}: {_flow(value)}" for key, value in good.packet.items()]
    return lines


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {part}" for key, part in value.items()) + "}"
    return str(value)


def data(found: Tuned, seed: int) -> dict[str, Any]:
    """Plain data; units are in the keys."""
    return {
        "schema": 1,
        "seed": seed,
        "good": {"set": found.good.name, "packet": found.good.packet},
        "tried": [{"set": one.name, "packet": one.packet, **one.row} for one in found.tried],
    }
