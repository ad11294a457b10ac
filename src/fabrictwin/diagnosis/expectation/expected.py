"""The twin's answer for hardware: channels, transports and bandwidths there, with and without faults."""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fabrictwin.base.errors import FabrictwinError
from fabrictwin.base.records import record
from fabrictwin.diagnosis.expectation.hardware import Hardware

GAIN_BYTES = 1 << 30
NEWEST_KNOWN = (2, 30)


@record
class Expected:
    """Behaviour of a release of NCCL on hardware, without the settings that a log was made with."""

    hardware: Hardware
    _measured: dict[tuple[str, int, str], tuple[float, str, str]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def confidence(self) -> float:
        """Confidence that this is the hardware at hand."""
        return self.hardware.confidence

    @property
    def source(self) -> str:
        """The words by which a finding names this expectation."""
        h = self.hardware
        return f"the twin: {h.hosts} x {h.host} on {h.fabric}, NCCL {self.release}"

    @cached_property
    def release(self) -> str:
        """The log's release where the twin knows it, else its own default."""
        from fabrictwin.nccl.settings.version import DEFAULT, version

        try:
            found = version(self.hardware.release) if self.hardware.release else version(DEFAULT)
        except FabrictwinError:
            return DEFAULT
        return str(found) if (found.major, found.minor) <= NEWEST_KNOWN else DEFAULT

    @cached_property
    def _twin(self) -> Any:
        return _twin_of(self.hardware, None)

    @cached_property
    def _communicator(self) -> Any:
        return _communicator_of(self._twin, self.hardware, self.release, {})

    @property
    def channels(self) -> int:
        """Collective channels."""
        return int(self._communicator.channels.collective)

    @property
    def nvls_channels(self) -> int:
        """Channels of in-switch reduction."""
        return int(self._communicator.channels.nvls)

    @cached_property
    def rails(self) -> int:
        """Adapters of a host."""
        from fabrictwin import catalog

        return len(catalog.host(self.hardware.host).nics)

    @cached_property
    def gpudirect(self) -> bool:
        """Return true if connections between hosts go straight to GPU memory."""
        c = self._communicator
        return c.nodes < 2 or any(c.gpudirect(0, adapter, send=False) for adapter in c.adapters(0))

    @cached_property
    def nvlink(self) -> bool:
        """Return true if the GPUs of a host reach each other over NVLink."""
        from fabrictwin.nccl.topology.graph_types import PathType

        c = self._communicator
        mine = np.flatnonzero(c.placement.node_of_rank == 0)
        return len(mine) > 1 and c.path(int(mine[0]), int(mine[1])).type == PathType.NVL

    def busbw(self, test: str, size_bytes: int) -> float:
        """Bus bandwidth in GB/s (1e9 bytes) of a test at a size; 0 where the twin has no answer."""
        return self.measured(test, size_bytes)[0]

    def measured(self, test: str, size_bytes: int, changed: str = "", **change: Any) -> tuple[float, str, str]:
        """Bus bandwidth in GB/s, algorithm and protocol of a test at a size, with what is changed."""
        key = (test, size_bytes, changed)
        if key not in self._measured:
            try:
                self._measured[key] = _busbw(self.hardware, self.release, test, size_bytes, **change)
            except FabrictwinError:
                self._measured[key] = (0.0, "", "")
        return self._measured[key]

    def gain_without(self, fault: str) -> str:
        """Words for how much faster an all-reduce of 1 GiB is without this fault of the hosts."""
        return self._gain(fault, fault=fault)

    def gain_without_setting(self, name: str, value: str) -> str:
        """Words for how much faster an all-reduce of 1 GiB is without this setting."""
        return self._gain(f"{name}={value}", environment={name: value})

    def _gain(self, changed: str, **change: Any) -> str:
        well = self.measured("all_reduce_perf", GAIN_BYTES)[0]
        ill = self.measured("all_reduce_perf", GAIN_BYTES, changed, **change)[0]
        if not well or not ill or well < 1.02 * ill:
            return ""
        return f"all_reduce of 1 GiB: {ill:.4g} to {well:.4g} GB/s on the twin"


def expected_of(hardware: Hardware) -> Expected:
    """The expectation for hardware, computed when it is asked for."""
    return Expected(replace(hardware, settings=()))


def _twin_of(hardware: Hardware, fault: str | None) -> Any:
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.twin.routed_twin import make_twin

    data: dict[str, Any] = {"schema": 1, "name": "expectation", "cluster": hardware.cluster()}
    if fault is not None:
        data["faults"] = [{"host": "*", "cause": fault}]
    spec = read_spec(data)
    return make_twin(spec, build(spec.cluster, spec=spec))


def _ranks(twin: Any, hardware: Hardware) -> Any:
    from fabrictwin.tools.nccl_tests.perf import ranks_of

    return ranks_of(twin, gpus_per_process=1, hosts=hardware.hosts, processes=hardware.gpus * hardware.hosts)


def _communicator_of(twin: Any, hardware: Hardware, release: str, environment: dict[str, str]) -> Any:
    from fabrictwin.nccl.communicator.communicator import initialise
    from fabrictwin.nccl.settings.settings import read_settings

    settings = read_settings(environment, release=release)
    return initialise(twin, _ranks(twin, hardware), settings=settings, version=release, strict=False)


def _busbw(
    hardware: Hardware,
    release: str,
    test: str,
    size_bytes: int,
    *,
    fault: str | None = None,
    environment: dict[str, str] | None = None,
) -> tuple[float, str, str]:
    from fabrictwin.nccl.settings.settings import read_settings
    from fabrictwin.tools.nccl_tests import perf

    if test not in perf.TESTS:
        return 0.0, "", ""
    twin = _twin_of(hardware, fault)
    settings = read_settings(environment or {}, release=release)
    options = perf.Options(test=perf.TESTS[test], min_bytes=size_bytes, max_bytes=size_bytes, check=0)
    run = perf.prepare(twin, options, settings=settings, rank_node=_ranks(twin, hardware))
    if run.communicator.network.failure is not None:
        return 0.0, "", ""
    (time_ps,) = run.time("flow")
    row = run.row(run.plans[0], time_ps, None)
    if row.choice is None:
        return row.bus_gbps, "", ""
    return row.bus_gbps, row.choice.algorithm.name, row.choice.protocol.name
