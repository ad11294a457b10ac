"""OpenSM's tables beside the twin's own for the same fabric: what changing over would gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.routing.check.judge import Judgement
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.engines.registry import OPENSM, compute
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Lids, Switches

# the twin's engine of the same idea
COUNTERPART = {
    "dfsssp": "balanced",
    "dnup": "updown",
    "ftree": "fattree",
    "minhop": "shortest",
    "sssp": "balanced",
    "updn": "updown",
}


@record
class Beside:
    """What another engine's tables do on the same fabric. Gains are shares of the congestion that it saves."""

    engine: str
    refused: str  # why there are none, or an empty string
    all_to_all: int  # paths on the fullest link
    shifts: float  # mean congestion
    random: float
    gain_all_to_all: float
    gain_shifts: float
    gain_random: float
    sound: bool


def judgements(engine: str) -> int:
    """Return how many tables are judged where these are compared: themselves, and those beside them."""
    return 3 if engine in OPENSM else 1


def beside(
    verdict: Judgement,
    switches: Switches,
    lids: Lids,
    options: Options,
    judge_tables: Callable[[Tables], Judgement],
) -> tuple[Beside, ...]:
    """The counterpart of OpenSM's engine and `auto` beside its judgement; nothing beside the twin's own engines.

    They take the roots, weights and LMC, as far as they have a use for them.
    """
    if verdict.engine not in OPENSM:
        return ()
    found = []
    for engine in (COUNTERPART[verdict.engine], "auto"):
        plain = replace(options, order=(), scatter=0, compute=(), storage=())
        if engine in ("auto", "fattree"):
            plain = replace(plain, weights={})
        if engine in ("balanced", "shortest"):
            plain = replace(plain, roots=())
        try:
            other = judge_tables(compute(switches, lids, engine=engine, options=plain))
        except ConfigError as error:
            found.append(Beside(engine, str(error), 0, 0.0, 0.0, 0.0, 0.0, 0.0, False))
            continue
        found.append(
            Beside(
                engine,
                "",
                other.all_to_all.worst,
                other.shifts.mean,
                other.random.mean,
                _gain(verdict.all_to_all.worst, other.all_to_all.worst),
                _gain(verdict.shifts.mean, other.shifts.mean),
                _gain(verdict.random.mean, other.random.mean),
                other.sound,
            )
        )
    return tuple(found)


def _gain(theirs: float, ours: float) -> float:
    return 1 - ours / theirs if theirs else 0.0
