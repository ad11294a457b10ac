"""DCQCN's parameters for a fabric: traffic played under many sets, and the one that serves it best.

The sets named are played first, then sets drawn around the one of the adapters' rate by a Latin hypercube: where
switches begin to mark, how far the sure mark lies above that, how likely a mark is below it, how fast rates climb.
Flow control alone and Swift are played beside them, to be told apart from.

Of sets whose slowest hundredth of flows ends within `CLOSE` of the best one's, the one with the least time in
pause is the good one: pauses are what spreads to others' traffic. Draws follow from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fabrictwin.base.congestion_controls import altered
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.grouped import grouped
from fabrictwin.base.progress import Stage, part
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.packet_section import OwnDcqcn
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.study.sweep.axes import Axis
from fabrictwin.study.sweep.point import FAILED, Row
from fabrictwin.study.sweep.samples import Point, samples
from fabrictwin.tools.traffic.play_traffic import TrafficResult

CLOSE = 0.02
NAMED = ("by-rate", "adapter", "hpcc", "hpcc-paper", "hpcc-config", "sigcomm15")
OTHERS = ("pfc-only", "pfc-swift")
AXES = (
    Axis("delay", ("2", "4", "8", "16", "32")),  # of queue where marks begin, in us at an adapter's rate
    Axis("span", ("2", "4", "8")),  # where marks are sure, in times that
    Axis("probability", ("0.01", "0.05", "0.2", "0.8")),
    Axis("additive", ("1", "4", "16", "64")),  # in times an adapter's own
    Axis("increase", ("55", "150", "300", "900")),  # timer, us
)
FIGURES = ("p99_us", "mean_us", "end_us", "pause_us", "ecn_marked", "dropped")

Play = Callable[[PacketOptions, Stage], TrafficResult]


class Book(Protocol):
    """Rows by place, such as a sweep's journal keeps them."""

    rows: dict[int, Row]

    def add(self, place: int, row: Row) -> None: ...


@dataclass
class InMemory:
    """Rows that no file keeps."""

    rows: dict[int, Row] = field(default_factory=dict)

    def add(self, place: int, row: Row) -> None:
        self.rows[place] = row


@record
class Tried:
    """One set, as a spec has it, and its figures; `row` has the reason where it failed."""

    name: str
    packet: dict[str, Any]
    row: Row

    @property
    def failed(self) -> bool:
        return self.row.get(FAILED) is not None


@record
class Tuned:
    """All sets that were tried, named ones first."""

    tried: tuple[Tried, ...]

    @property
    def good(self) -> Tried:
        """The set of DCQCN to take. Raises ConfigError where none could be played."""
        found = [one for one in self.tried if not one.failed and one.packet["control"] == "dcqcn"]
        if not found:
            raise ConfigError("got no set of parameters under which the traffic ends", key="--tune")
        best = min(one.row["p99_us"] for one in found)
        near = [one for one in found if one.row["p99_us"] <= best * (1 + CLOSE)]
        return min(near, key=lambda one: (one.row["pause_us"], one.row["p99_us"]))


def points(count: int, seed: int) -> list[Point]:
    """List what is tried: names, then draws of each axis."""
    drawn = samples(AXES, count, "latin", seed) if count else []
    return [*((name,) for name in (*OTHERS, *NAMED)), *drawn]


def section(point: Point, nic_bps: int) -> dict[str, Any]:
    """A point as keys of `run.packet`."""
    if len(point) == 1:
        name = point[0]
        if name in OTHERS:
            return {"preset": name, "control": "none" if name == "pfc-only" else "swift"}
        return {"control": "dcqcn", "dcqcn": name}
    delay, span, probability, additive, increase = point
    low = nic_bps // 8 * int(delay) // 10**6
    return {
        "control": "dcqcn",
        "dcqcn": {
            "like": "by-rate",
            "ecn_min": f"{low} B",
            "ecn_max": f"{low * int(span)} B",
            "ecn_probability": float(probability),
            "additive": f"{5 * int(additive)} Mb/s",
            "hyper": f"{50 * int(additive)} Mb/s",
            "increase_timer": f"{increase} us",
        },
    }


def options_at(base: PacketOptions, packet: dict[str, Any]) -> PacketOptions:
    """The engine's options under a set."""
    found = packet.get("dcqcn", "by-rate")
    if not isinstance(found, str):
        own = OwnDcqcn.model_validate(found)
        found = altered(own.like, dict(own))
    changes = {"control": packet["control"], "dcqcn": found}
    if "preset" in packet:
        changes["lossless"] = True
    return grouped(base, changes)


def tune(
    play: Play,
    base: PacketOptions,
    asked: Sequence[Point],
    *,
    nic_bps: int,
    stage: Stage,
    book: Book,
) -> Tuned:
    """Play every point that the journal does not have yet. Raises ConfigError."""
    for place, point in enumerate(asked):
        if place in book.rows:
            continue
        packet = section(point, nic_bps)
        within = part(stage, place / len(asked), (place + 1) / len(asked))
        stage(f"set {place + 1} of {len(asked)}", place / len(asked))
        try:
            book.add(place, _figures(play(options_at(base, packet), within)))
        except (ConfigError, SimulatedError) as error:
            book.add(place, {FAILED: " ".join(str(error).split())})
    return Tuned(
        tuple(
            Tried(
                " ".join(point) if len(point) == 1 else f"drawn {place}", section(point, nic_bps), book.rows[place]
            )
            for place, point in enumerate(asked)
        )
    )


def _figures(result: TrafficResult) -> Row:
    said = result.summary()
    return {
        "p99_us": said["completion_us"]["p99"],
        "mean_us": said["completion_us"]["mean"],
        "end_us": said["end_us"],
        "pause_us": said["pauses"]["time_us"],
        "ecn_marked": said["packets"]["ecn_marked"],
        "dropped": said["packets"]["dropped"],
    }
