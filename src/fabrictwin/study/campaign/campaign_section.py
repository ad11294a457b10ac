"""The `campaign` section of a spec: how long a run trains, what fails, and what is done about it.

failures    a log of the catalog, whose rates are taken by GPU, host, adapter, cable or switch of this job
rates       rates of one's own: over a component of the log, or one more
detection   the time until a failure is noticed: of an error, of a hang (the watchdog's), of silent corruption
restart     from there to the first step, without reading the checkpoint; `manual`: where it needs people
spares      hosts that stand ready; without the key there are always enough
repair      of a host that was replaced, until it is a spare
checkpoint  how often, of what size, where to
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from fabrictwin.base.errors import quoted
from fabrictwin.base.units import PS_PER_S, Duration, Rate
from fabrictwin.catalog.failures import Rate as FailuresRate
from fabrictwin.catalog.failures import Shows
from fabrictwin.cluster.spec.cluster_section import Model, Seed

MOST_RATES = 64
_TOKENS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMBGT]?)\s*\Z")
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def parse_tokens(value: object) -> int:
    """`'15.6T'` to 15,600,000,000,000. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**18:
        return value
    match = _TOKENS.match(value) if isinstance(value, str) and len(value) < 40 else None
    found = round(float(match[1]) * _SCALE[match[2]]) if match else 0
    if not 0 < found < 10**18:
        raise ValueError(f"got {quoted(value)}, expected a number of tokens, such as 15.6T")
    return found


Tokens = Annotated[
    int,
    BeforeValidator(parse_tokens, json_schema_input_type=int | str),
    PlainSerializer(lambda v: v, return_type=int),
]


def _spell(value: Any) -> Any:
    return {"mean": value} if isinstance(value, str) else value


class Spell(Model):
    """A time: always `mean`, or with a `median` below it drawn from the lognormal distribution of both."""

    mean: Duration
    median: Annotated[Duration, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Spell:
        if self.median is not None and self.median >= self.mean:
            raise ValueError("got a median that is not below the mean, expected a time with rare long ones")
        return self


Time = Annotated[Spell, BeforeValidator(_spell, json_schema_input_type=str | Spell)]


class OwnRate(Model):
    """How often one component fails, how that shows, and whether its host goes to repair."""

    rate: FailuresRate
    title: str = ""
    shows: Shows | None = None
    replaces: bool | None = None


def _rate(value: Any) -> Any:
    return {"rate": value} if isinstance(value, str) else value


class Detection(Model):
    """Times from a failure to the moment at which the job is being ended."""

    error: Duration = Field(default=60 * PS_PER_S, json_schema_extra={"default": "1 min"})
    hang: Duration = Field(default=1800 * PS_PER_S, json_schema_extra={"default": "30 min"})
    silent: Duration = Field(default=3600 * PS_PER_S, json_schema_extra={"default": "1 h"})


class Manual(Model):
    """With this chance a restart needs people, and that time more."""

    chance: Annotated[float, Field(ge=0, le=1)] = 0.0
    time: Duration = Field(default=4 * 3600 * PS_PER_S, json_schema_extra={"default": "4 h"})


class Storage(Model):
    """Where checkpoints go: what the whole of it writes and reads, and its hosts where they are in the cluster.

    With `hosts` the bytes go over the cluster's own network, from every GPU to their processors.
    """

    write: Annotated[Rate, Field(gt=0)]
    read: Annotated[Rate, Field(gt=0)] | None = None
    hosts: tuple[str, ...] = ()


class Checkpoint(Model):
    """How the state is saved.

    blocking      steps wait until storage has it
    asynchronous  steps wait until it is in host memory; storage takes it meanwhile
    peer          the same, to the memory of another host; to storage every `persist`
    """

    kind: Literal["blocking", "asynchronous", "peer"] = "asynchronous"
    every: Duration | Literal["best"] = "best"
    bytes_per_parameter: Annotated[float, Field(gt=0, le=64)] = 14.0
    storage: Storage = Storage.model_construct(write=800 * 10**9, read=None, hosts=())
    persist: Duration = Field(default=4 * 3600 * PS_PER_S, json_schema_extra={"default": "4 h"})


class Campaign(Model):
    """The whole section; `tokens`, `steps` or `days` of the calendar say how much is trained."""

    tokens: Tokens | None = None
    steps: Annotated[int, Field(strict=True, ge=1, le=10**9)] | None = None
    days: Annotated[float, Field(gt=0, le=3650)] | None = None
    failures: str = "llama3-405b"
    rates: Annotated[
        dict[str, Annotated[OwnRate, BeforeValidator(_rate, json_schema_input_type=str | OwnRate)]],
        Field(default_factory=dict, max_length=MOST_RATES),
    ]
    scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    detection: Detection = Detection.model_construct()
    restart: Time = Spell.model_construct(mean=222 * PS_PER_S, median=None)
    manual: Manual = Manual.model_construct(chance=3 / 419, time=4 * 3600 * PS_PER_S)
    spares: Annotated[int, Field(strict=True, ge=0, le=100_000)] | None = None
    repair: Time = Spell.model_construct(mean=86400 * PS_PER_S, median=None)
    checkpoint: Checkpoint = Checkpoint.model_construct()
    runs: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 200
    seed: Seed | None = None

    @model_validator(mode="after")
    def _one_length(self) -> Campaign:
        given = [key for key in ("tokens", "steps", "days") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"got {' and '.join(given)}, expected one of tokens, steps and days")
        return self


# What docs/campaign.md says of each figure that is assumed where the section is silent.
ASSUMED = (
    ("detection.error", "detection of errors"),
    ("detection.hang", "detection of hangs (NCCL's watchdog)"),
    ("detection.silent", "detection of silent corruption"),
    ("restart", "restart"),
    ("manual", "manual restarts"),
    ("repair", "repair"),
    ("checkpoint.storage", "checkpoint storage"),
)
