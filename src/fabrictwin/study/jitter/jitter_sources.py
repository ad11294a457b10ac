"""The `jitter` section of a spec: what is uneven about a cluster, each source with its distribution.

compute   interruptions of compute, on every GPU: the operating system, other processes
clocks    how unequal GPUs are, afresh in every step: a Gaussian share of their compute time
network   what communication takes longer: congestion from others, adaptive routing, retransmissions; a share
          of its time, exponential or drawn from measured factors
drift     all GPUs alike, slowly, over a run: clocks and power follow what the model's numbers become
late      GPUs that begin a step late
slow      GPUs that are slow for a whole step
link      a link of the job that is slow, or goes down for a time
flap      the same once more, so that both can be there

`second_job` and `bit_errors` are measured where a study begins (`study.jitter.interference`): then their
`factors` stand in the section.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from fabrictwin.base.units import Duration, Rate
from fabrictwin.cluster.spec.cluster_section import Model, Seed
from fabrictwin.cluster.spec.fault_section import Noise
from fabrictwin.study.jitter.distributions import Amount

Chance = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(gt=0, le=10)]


SOURCES = ("compute", "clocks", "network", "second_job", "bit_errors", "drift", "late", "slow", "link", "flap")


class Clocks(Model):
    """Standard deviation of a GPU's compute time, as a share of it."""

    deviation: Share


class Drift(Model):
    """How far a step's time strays over a run, either way, as a share of it; any place of the way is as likely."""

    share: Annotated[float, Field(gt=0, lt=1)]


Factor = Annotated[float, Field(ge=0.5, le=1000)]


class Network(Model):
    """What each communication takes longer: a time of `mean`, a share of `mean`, or one of the measured `factors`.

    All-to-alls take one of `exchange` where there are any. A factor of 1 is nothing.
    """

    mean: Share | Duration | None = None
    distribution: Literal["fixed", "exponential"] = "exponential"  # of mean
    factors: tuple[Factor, ...] = ()
    exchange: tuple[Factor, ...] = ()
    source: str = ""  # where measured factors come from

    @model_validator(mode="after")
    def _one(self) -> Network:
        if (self.mean is None) == (not self.factors):
            raise ValueError("expected either mean or factors")
        if self.distribution == "fixed" and self.time_ps is None:
            raise ValueError("got distribution: fixed, which means nothing without a time as mean, such as 100 us")
        if self.exchange and not self.factors:
            raise ValueError("got exchange without factors, expected both")
        if self.factors and not self.source:
            raise ValueError("got factors without source, expected where they were measured")
        return self

    @property
    def time_ps(self) -> int | None:
        """The mean where it is a time."""
        return self.mean if isinstance(self.mean, int) else None


Seeds = Annotated[tuple[Seed, ...], Field(min_length=1, max_length=64)]


class SecondJob(Model):
    """Another job on the same fabric, on hosts between this one's, going through a phase all the time."""

    traffic: Literal["ring", "exchange"] = "exchange"
    fidelity: Literal["packet", "flow"] = "packet"
    seeds: Seeds = (1, 2)
    factors: tuple[Factor, ...] = ()
    exchange: tuple[Factor, ...] = ()


class BitErrors(Model):
    """Every link of the network spoils bits at this rate, after correction."""

    rate: Annotated[float, Field(gt=0, lt=1e-3)]
    seeds: Seeds = (1, 2)
    factors: tuple[Factor, ...] = ()
    exchange: tuple[Factor, ...] = ()


def _exponential(mean: float, parts: int = 64) -> list[float]:
    """Factors at the middle of equally likely parts of an exponential share."""
    tail = (np.arange(parts) + 0.5) / parts
    return [1.0 + mean * float(share) for share in Amount("exponential", 1.0).above(tail)]


class Late(Model):
    """With this chance a GPU begins a step late, by a mean time."""

    chance: Chance
    mean: Duration
    distribution: Literal["fixed", "exponential"] = "exponential"


class Slow(Model):
    """With this chance a GPU takes `slowdown` times as long for a whole step."""

    chance: Chance
    slowdown: Annotated[float, Field(gt=1, le=1000)]


class Link(Model):
    """With this chance, in a step, a link of the job runs at `rate`, or is down for `down` of it."""

    chance: Chance
    rate: Rate | None = None
    down: Duration | None = None

    @model_validator(mode="after")
    def _one(self) -> Link:
        if (self.rate is None) == (self.down is None):
            raise ValueError("expected either rate (a degraded link) or down (a link that flaps)")
        if self.rate == 0:
            raise ValueError("got rate 0, expected down for a link that goes down")
        return self


class Jitter(Model):
    """All sources; one that is absent does nothing."""

    compute: Noise | None = None
    clocks: Clocks | None = None
    network: Network | None = None
    drift: Drift | None = None
    late: Late | None = None
    slow: Slow | None = None
    second_job: SecondJob | None = None
    bit_errors: BitErrors | None = None
    link: Link | None = None
    flap: Link | None = None
    seed: Seed | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Jitter:
        if self.network is not None and self.network.time_ps is not None:
            for name in ("second_job", "bit_errors"):
                if getattr(self, name) is not None:
                    raise ValueError(f"got network with a time beside {name}, expected a share or factors")
        return self

    def names(self) -> tuple[str, ...]:
        """Those that are there, in the order above."""
        return tuple(name for name in SOURCES if getattr(self, name) is not None)

    def without(self, name: str) -> Jitter:
        return self.model_copy(update={name: None})

    def communication(self) -> Network | None:
        """All that makes communication longer as one: every combination of measured factors is as likely."""
        measured = [one for one in (self.second_job, self.bit_errors) if one is not None and one.factors]
        if not measured:
            return self.network
        factors, exchange = [1.0], [1.0]
        if self.network is not None:
            factors = exchange = list(self.network.factors or _exponential(float(self.network.mean or 0.0)))
            exchange = list(self.network.exchange) or exchange
        for one in measured:
            factors = [a * b for a in factors for b in one.factors]
            exchange = [a * b for a in exchange for b in one.exchange or one.factors]
        return Network.model_construct(factors=tuple(factors), exchange=tuple(exchange), source="measured")

    def scaled(self, level: float) -> Jitter:
        """Amplitudes times `level`: times and shares, not chances; level 0 has no sources."""
        if level == 0:
            return Jitter(seed=self.seed)
        update: dict[str, object] = {}
        if self.compute is not None:
            # an interruption can last no longer than the time between two
            mean = min(round(self.compute.mean * level), self.compute.period - 1)
            update["compute"] = self.compute.model_copy(update={"mean": mean})
        if self.clocks is not None:
            update["clocks"] = Clocks.model_construct(deviation=self.clocks.deviation * level)
        if self.network is not None:
            more, exchange = (
                tuple(1 + (factor - 1) * level for factor in factors)
                for factors in (self.network.factors, self.network.exchange)
            )
            each = self.network.mean
            grown_mean = round(each * level) if isinstance(each, int) else None if each is None else each * level
            update["network"] = self.network.model_copy(
                update={"mean": grown_mean, "factors": more, "exchange": exchange}
            )
        for name in ("second_job", "bit_errors"):
            measured = getattr(self, name)
            if measured is not None:
                grown = {
                    key: tuple(1 + (factor - 1) * level for factor in getattr(measured, key))
                    for key in ("factors", "exchange")
                }
                update[name] = measured.model_copy(update=grown)
        if self.drift is not None:
            update["drift"] = Drift.model_construct(share=min(self.drift.share * level, 0.99))
        if self.late is not None:
            update["late"] = self.late.model_copy(update={"mean": round(self.late.mean * level)})
        if self.slow is not None:
            update["slow"] = self.slow.model_copy(update={"slowdown": 1 + (self.slow.slowdown - 1) * level})
        return self.model_copy(update=update)


# What is assumed where a spec has no section of its own; docs/jitter.md says what each rests on.
ASSUMED = Jitter.model_validate(
    {
        "compute": {"mean": "25 us", "period": "10 ms"},
        "clocks": {"deviation": 0.01},
        "network": {"mean": 0.02},
        "late": {"chance": 1e-4, "mean": "1 ms"},
    }
)
