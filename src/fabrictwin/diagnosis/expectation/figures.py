"""Figures to hold a cluster against: bandwidths of nccl-tests and perftest, step times; tables and health checks.

Shapes of health checks: NHC (LBNL's node health check: one check a line, as `mpirun all_reduce_perf` wrappers take
them) and azurehpc-health-checks' `azure_nccl_allreduce` lines, each with the floor that the tolerance leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fabrictwin import catalog
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US, format_size
from fabrictwin.diagnosis.expectation.expected import Expected, expected_of
from fabrictwin.diagnosis.expectation.hardware import Hardware

if TYPE_CHECKING:
    from fabrictwin.cluster.spec.spec import Spec


@record
class Asked:
    """Hardware and tests to expect figures of."""

    host: str
    hosts: tuple[int, ...] = (1, 2)
    fabric: str = "infiniband"
    tests: tuple[str, ...] = ("all_reduce_perf",)
    sizes: tuple[int, ...] = (1 << 30,)
    release: str = ""
    tolerance: float = 0.1
    spec: str = ""


@record
class Figure:
    """One expected figure. `value` is in `unit`; `floor` is what the tolerance leaves."""

    test: str
    hosts: int
    size_bytes: int
    value: float
    unit: str
    algorithm: str = ""
    protocol: str = ""
    floor: float = 0.0
    ceiling: float = 0.0  # of times, which are wrong when they are longer


def figures(asked: Asked, stage: Stage | None = None) -> list[Figure]:
    """Figures of the twin, by test, hosts and size. Raises ConfigError."""
    from fabrictwin.base.errors import ConfigError, did_you_mean
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.tools.nccl_tests.perf import TESTS

    watcher = stage or silent
    for test in asked.tests:
        if test not in TESTS:
            raise ConfigError(
                f"got {test!r}, expected one of nccl-tests' programs{did_you_mean(test, TESTS)}", key="--tests"
            )
    job = load_spec(asked.spec) if asked.spec else None  # what is wrong with it is said before anything runs
    found: list[Figure] = []
    stages = len(asked.hosts) + 1 + bool(asked.spec)
    for done, count in enumerate(asked.hosts):
        watcher(f"{count} host{'s' if count > 1 else ''}", done / stages)
        expected = expected_of(Hardware.stated(asked.host, count, asked.fabric, release=asked.release))
        for test in asked.tests:
            found += [_collective(asked, expected, test, size) for size in asked.sizes]
    if "efa" not in catalog.host(asked.host).nics[0].type:  # which perftest's programs do not measure
        watcher("perftest", len(asked.hosts) / stages)
        found += _perftest(asked)
    if job is not None:
        watcher("the job", 1 - 1 / stages)
        found.append(_step(asked, job))
    return found


def _collective(asked: Asked, expected: Expected, test: str, size: int) -> Figure:
    rate, algorithm, protocol = expected.measured(test, size)
    return Figure(
        test,
        expected.hardware.hosts,
        size,
        rate,
        "GB/s busbw",
        algorithm,
        protocol,
        floor=rate * (1 - asked.tolerance),
    )


PERFTEST_BYTES = 65536


def _perftest(asked: Asked) -> list[Figure]:
    """Bandwidth of large writes and latency of small ones over one adapter, by the twin's perftest."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.tools.perftest.perftest_loops import Bandwidth, Latency, play
    from fabrictwin.tools.perftest.perftest_options import PerftestOptions
    from fabrictwin.twin.routed_twin import make_twin

    cluster = Hardware(asked.host, 2, asked.fabric).cluster()
    cluster["network"] = {**dict(cluster["network"]), "topology": {"kind": "fat-tree"}}  # type: ignore[call-overload]
    spec = read_spec({"schema": 1, "name": "expectation", "cluster": cluster})
    twin = make_twin(spec, build(spec.cluster, spec=spec))
    first, second = twin.fabric.host_names[:2]
    found = []
    for test, size in (("ib_write_bw", PERFTEST_BYTES), ("ib_write_lat", 8)):
        options = PerftestOptions(test=test, source=first, target=second, size=size, iterations=500)
        (row,) = play(twin, options).rows
        if isinstance(row, Bandwidth):
            rate = row.average_bps / 1e9
            found.append(Figure(test, 2, size, rate, "Gb/s", floor=rate * (1 - asked.tolerance)))
        elif isinstance(row, Latency):
            delay = row.typical / PS_PER_US
            found.append(Figure(test, 2, size, delay, "us", ceiling=delay * (1 + asked.tolerance)))
    return found


def _step(asked: Asked, job: Spec) -> Figure:
    from fabrictwin.base.units import PS_PER_S
    from fabrictwin.runs.execute import predict

    result = predict(job)
    seconds = result.trace.end_ps / PS_PER_S
    return Figure("training step", 0, 0, seconds, "s", ceiling=seconds * (1 + asked.tolerance))


def as_data(asked: Asked, found: list[Figure]) -> dict[str, Any]:
    """Figures as plain data."""
    return {
        "host": asked.host,
        "fabric": asked.fabric,
        "nccl": asked.release or "default",
        "tolerance": asked.tolerance,
        "expect": [
            {
                "test": f.test,
                **({"hosts": f.hosts} if f.hosts else {}),
                **({"size_bytes": f.size_bytes} if f.size_bytes else {}),
                "expected": round(f.value, 3),
                "unit": f.unit,
                **({"algorithm": f.algorithm, "protocol": f.protocol} if f.algorithm else {}),
                **({"at_most": round(f.ceiling, 3)} if f.ceiling else {"at_least": round(f.floor, 3)}),
            }
            for f in found
        ],
    }


def _table(asked: Asked, found: list[Figure]) -> str:
    lines = [f"{asked.host} on {asked.fabric}, tolerance {asked.tolerance:.0%}", ""]
    lines.append(f"{'test':20} {'hosts':>5} {'size':>10} {'expected':>10} {'limit':>10} unit        choice")
    for f in found:
        size = format_size(f.size_bytes) if f.size_bytes else ""
        choice = f"{f.algorithm} {f.protocol}".strip()
        limit = f.ceiling or f.floor
        lines.append(
            f"{f.test:20} {f.hosts or '':>5} {size:>10} {f.value:10.2f} {limit:10.2f} "
            f"{f.unit:11} {choice}".rstrip()
        )
    return "\n".join(lines) + "\n"


def _yaml(asked: Asked, found: list[Figure]) -> str:
    import yaml

    return yaml.safe_dump(as_data(asked, found), sort_keys=False)


def _nhc(asked: Asked, found: list[Figure]) -> str:
    """Lines for LBNL NHC: a match of hosts, and a check with its arguments."""
    lines = [f"# {asked.host} on {asked.fabric}: floors of the twin, tolerance {asked.tolerance:.0%}"]
    for f in found:
        if f.hosts == 1 and f.size_bytes:
            lines.append(f"* || check_nccl_{f.test.removesuffix('_perf')} {f.floor:.1f} {f.size_bytes}")
        elif f.test == "ib_write_bw":
            lines.append(f"* || check_ib_write_bw {f.floor:.1f}")
    return "\n".join(lines) + "\n"


def _azure(asked: Asked, found: list[Figure]) -> str:
    """Lines in the shape of azurehpc-health-checks' conf files."""
    lines = [f"# {asked.host} on {asked.fabric}: floors of the twin, tolerance {asked.tolerance:.0%}"]
    for f in found:
        if f.test == "all_reduce_perf" and f.hosts == 1:
            lines.append(f"* || check_nccl_allreduce {f.floor:.1f} 1 {f.size_bytes}")
        elif f.test == "ib_write_bw":
            lines.append(f"* || check_ib_bw_gdr {f.floor:.1f}")
    return "\n".join(lines) + "\n"


SHAPES: dict[str, Callable[[Asked, list[Figure]], str]] = {
    "table": _table,
    "yaml": _yaml,
    "nhc": _nhc,
    "aznhc": _azure,
}
