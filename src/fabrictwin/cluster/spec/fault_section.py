"""The `faults` section of a spec: what is broken, from the start or at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.units import Duration, Rate, Size
from fabrictwin.base.validation_errors import config_errors
from fabrictwin.cluster.spec.cluster_section import Model, Seed


class LinkFault(Model):
    """A link, named by either of its ends, that both ways runs at another rate (dead at 0) or makes bit errors.

    Without a time it is so from the start, and routes know it. With `at` it becomes so while the job runs, until
    `until`; with `period` it does so for `down` of every period, `count` times or until `until`.
    """

    link: str
    rate: Rate | None = None
    error_rate: Annotated[float, Field(gt=0, lt=1)] | None = None  # chance that a bit is hit, after correction
    at: Duration | None = None
    until: Duration | None = None
    period: Duration | None = None
    down: Duration | None = None
    count: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    jitter: Duration | None = None  # of the start of each time down, at most
    seed: Seed | None = None  # of the jitter; otherwise the run's

    @property
    def timed(self) -> bool:
        """Return True where the fault happens while the job runs: routes are those of the whole fabric."""
        return self.at is not None or self.period is not None or self.error_rate is not None

    @model_validator(mode="after")
    def _together(self) -> LinkFault:
        if self.error_rate is not None and (self.rate is not None or self.period is not None):
            raise ValueError("got error_rate together with rate or period, expected a line of its own for it")
        if self.rate is None and self.error_rate is None and self.period is None:
            raise ValueError("got a link and nothing that is wrong with it, expected rate, error_rate or period")
        if self.period is None:
            for key in ("down", "count", "jitter", "seed"):
                if getattr(self, key) is not None:
                    raise ValueError(f"got {key} without period, expected both: a link that flaps")
        else:
            if self.down is None or not 0 < self.down < self.period:
                raise ValueError("expected down of a flapping link, more than nothing and less than its period")
            if self.down + (self.jitter or 0) >= self.period:
                raise ValueError("got down and jitter that fill the period, expected less together")
            if (self.count is None) == (self.until is None):
                raise ValueError("expected how long the link flaps: either count or until")
            if self.seed is not None and self.jitter is None:
                raise ValueError("got seed without jitter, expected both")
        if self.until is not None:
            if not self.timed:
                raise ValueError("got until without at, expected both")
            if self.until <= (self.at or 0):
                raise ValueError("got until that is not after at")
        return self


Timed = TypeVar("Timed", bound="SwitchFault | StormFault")


def _ends_after_it_begins(fault: Timed) -> Timed:
    if fault.until is not None and fault.until <= fault.at:
        raise ValueError("got until that is not after at")
    return fault


class SwitchFault(Model):
    """A switch that goes off `at` and is on again at `until`, or never; its links go and come with it."""

    switch: str
    at: Duration = Field(default=0, json_schema_extra={"default": "0 s"})
    until: Duration | None = None

    _in_order = model_validator(mode="after")(_ends_after_it_begins)


class StormFault(Model):
    """An adapter whose receiver is stuck: it pauses a priority from `at` on, without end or until `until`."""

    pause_storm: str  # the adapter, such as host-0/mlx5_0
    priority: Annotated[int, Field(strict=True, ge=0, le=7)] = 3
    at: Duration = Field(default=0, json_schema_extra={"default": "0 s"})
    until: Duration | None = None

    _in_order = model_validator(mode="after")(_ends_after_it_begins)


class GpuFault(Model):
    """A GPU whose compute takes `slowdown` times as long, or whose first operation starts `late`, or both."""

    gpu: str
    slowdown: Annotated[float, Field(ge=1, le=1e6)] | None = None
    late: Duration | None = None

    @model_validator(mode="after")
    def _something(self) -> GpuFault:
        if self.slowdown is None and self.late is None:
            raise ValueError("got a GPU and nothing that is wrong with it, expected slowdown or late")
        return self


class Noise(Model):
    """Interruptions of compute: one every `period` on average, each of `mean` length."""

    mean: Duration
    period: Duration
    distribution: Literal["exponential", "fixed"] = "exponential"
    seed: Seed | None = None  # otherwise the run's

    @model_validator(mode="after")
    def _less_than_always(self) -> Noise:
        if not 0 < self.mean < self.period:
            raise ValueError("expected a mean of noise above nothing and below its period")
        return self


class NoiseFault(Model):
    """Operating-system noise on the hosts whose names match, all unless said otherwise."""

    noise: Noise
    hosts: tuple[str, ...] = ()


class HostFault(Model):
    """Something wrong with the hosts whose names match, that communication libraries trip over.

    No peer memory module, so that adapters do not reach GPU memory; too little locked memory to register buffers;
    a container without RDMA devices; PCIe access control, which sends peers' traffic up to the processor and back
    down; GIDs that are link-local or of RoCE v1; an NCCL_SOCKET_IFNAME that lets no interface through.
    """

    host: str  # a name or a glob
    cause: Literal[
        "no-gpudirect-module", "locked-memory", "no-rdma-devices", "acs", "wrong-gid", "interface-filter"
    ]
    limit: Size | None = None  # of locked memory; 64 KiB where nothing is said
    gid: Literal["roce-v1", "link-local"] | None = None  # what the adapters have; link-local likewise
    interfaces: str | None = None  # the filter; one that matches nothing likewise

    @model_validator(mode="after")
    def _its_own(self) -> HostFault:
        for key, cause in (("limit", "locked-memory"), ("gid", "wrong-gid"), ("interfaces", "interface-filter")):
            if getattr(self, key) is not None and self.cause != cause:
                raise ValueError(f"got {key}, which means nothing without cause: {cause}")
        return self


Fault = LinkFault | SwitchFault | StormFault | GpuFault | NoiseFault | HostFault


def told_apart(item: Any, index: int) -> Any:
    """The model that a fault's keys ask for: one clear error instead of one for each kind of fault."""
    if not isinstance(item, Mapping):
        return item
    model: type[Fault] = LinkFault
    if "cause" in item or "host" in item:
        model = HostFault
    elif "pause_storm" in item:
        model = StormFault
    elif "noise" in item or "hosts" in item:
        model = NoiseFault
    elif "gpu" in item or "slowdown" in item or "late" in item:
        model = GpuFault
    elif "switch" in item:
        model = SwitchFault
    try:
        return model.model_validate(item)
    except ValidationError as error:
        found = config_errors(error, model, data=item, path=("faults", index))[0]
        raise ConfigError(found.message, key=found.key) from None
