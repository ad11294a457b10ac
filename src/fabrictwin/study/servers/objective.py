"""What is asked of a server: so many requests a second, and bounds that a share of them is to meet."""

from __future__ import annotations

import math

import numpy as np

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S, format_time, parse_time
from fabrictwin.serving.predict import Prediction
from fabrictwin.serving.report.bench import Floats, latencies

PERIODS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}


@record
class Objective:
    """Bounds on latencies; infinite where none is asked.

    Attributes:
        rate: Requests a second.
        ttft_s: Of the time to a first token.
        tpot_s: Of the time per output token.
        share: Of requests that are to meet both.
    """

    rate: float
    ttft_s: float = math.inf
    tpot_s: float = math.inf
    share: float = 0.9

    @property
    def text(self) -> str:
        """Return the objective in words."""
        bounds = [
            f"{name} {format_time(round(bound * PS_PER_S))}"
            for name, bound in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))
            if bound < math.inf
        ]
        return f"{self.rate:g} requests a second, {self.share:.0%} of them within {' and '.join(bounds)}"

    def met(self, found: Prediction) -> float:
        """Return the share of a run's requests that met the bounds."""
        times = latencies(found.served)
        return float(np.mean((times.ttft <= self.ttft_s) & (times.tpot <= self.tpot_s)))

    def excess(self, ttft_s: float, tpot_s: float) -> float:
        """Return the larger of both latencies over its bound."""
        return max(ttft_s / self.ttft_s, tpot_s / self.tpot_s)

    def at_share(self, values: Floats) -> float:
        """Return the value that as many requests stay below as are to meet the bounds."""
        return float(np.percentile(values, 100 * self.share)) if len(values) else 0.0


def parse_bound(text: str | None, key: str) -> float:
    """Return seconds of `2s` or `50ms`, infinity for None. Raises ConfigError."""
    if text is None:
        return math.inf
    try:
        bound = parse_time(text) / PS_PER_S
    except ValueError as error:
        raise ConfigError(str(error), key=key) from None
    if bound <= 0:
        raise ConfigError(f"got {quoted(text)}, expected more than no time", key=key)
    return bound


def parse_request_rate(text: str) -> float:
    """Return requests a second of `20/s`, `90/min` or `20`. Raises ConfigError."""
    number, _, period = text.strip().partition("/")
    try:
        rate = float(number) / PERIODS_S[period.strip() or "s"]
    except (ValueError, KeyError):
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ConfigError(f"got {quoted(text)}, expected requests a second as 20/s or 90/min", key="--rate")
    return rate
