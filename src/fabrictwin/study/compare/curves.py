"""Curves: the median step of each fabric as one key of the spec takes several values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.catalog import FabricPreset
from fabrictwin.cluster.spec.edits import set_text
from fabrictwin.cluster.spec.spec import Origin, Spec, read_spec, without_figures
from fabrictwin.runs.execute import predict
from fabrictwin.study.compare.fabrics import preset, with_fabric
from fabrictwin.study.compare.without_rdma import over_sockets

_LEADING = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)")


@record
class Curve:
    """Clean steps in seconds by value; a value that a fabric refuses has no point, and a reason in `refused`."""

    key: str
    labels: tuple[str, ...]
    values: tuple[float, ...]  # what a value is plotted at: its leading number, or its place
    series: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    refused: Mapping[tuple[str, int], str]

    @property
    def logarithmic(self) -> bool:
        return min(self.values) > 0 and max(self.values) / min(self.values) >= 8


def parse(given: str) -> tuple[str, tuple[str, ...]]:
    """`cluster.hosts.count=8,16,32` to its key and values. Raises ConfigError."""
    key, equals, values = given.partition("=")
    found = tuple(value.strip() for value in values.split(",") if value.strip())
    if not equals or not key.strip() or not found:
        raise ConfigError(
            f"got {given!r}, expected a key of the spec and its values, such as cluster.hosts.count=8,16,32",
            key="--vary",
        )
    return key.strip(), found


def with_value(spec: Spec, key: str, value: str) -> Spec:
    """The spec with another value at a key such as `cluster.network.topology.oversubscription`.

    Keys that change together are joined by `+`, their values by `:`. Raises ConfigError.
    """
    data = spec.to_dict()
    set_text(data, key, value, option="--vary")
    without_figures(data)
    return read_spec(data, Origin(spec.folder, spec.path))


def vary(
    spec: Spec,
    given: str,
    fabrics: Sequence[str],
    own: Mapping[str, FabricPreset],
    stage: Stage,
) -> Curve:
    """Clean steps over the values. Raises ConfigError where no fabric takes any value."""
    key, labels = parse(given)
    numbers = [_LEADING.match(label) for label in labels]
    values = tuple(float(m[1]) if m else float(i) for i, m in enumerate(numbers))
    if len(set(values)) != len(values):
        values = tuple(float(i) for i in range(len(values)))
    series: list[tuple[str, tuple[tuple[float, float], ...]]] = []
    refused: dict[tuple[str, int], str] = {}
    for name in fabrics:
        points = []
        for i, label in enumerate(labels):
            stage(f"{name}: {key} = {label}")
            try:
                # the fabric first: what is varied may be a part of it
                fabric = preset(name, own)
                alter = over_sockets if fabric.transport == "tcp" else None
                result = predict(with_value(with_fabric(spec, fabric), key, label), alter=alter)
            except ConfigError as error:
                refused[name, i] = error.message
                continue
            points.append((values[i], result.trace.end_ps / PS_PER_S))
        series.append((name, tuple(points)))
    if not any(points for _, points in series):
        raise ConfigError(f"{key}: no value works: {next(iter(refused.values()))}", key="--vary")
    return Curve(key, labels, values, tuple(series), refused)


def curve_text(curve: Curve) -> str:
    """A table for a terminal."""
    names = [name for name, _ in curve.series]
    lines = [f"clean step by {curve.key}", "  " + "".join(f"{head:>22}" for head in ("", *names))]
    for i, label in enumerate(curve.labels):
        cells = []
        for _, points in curve.series:
            found = dict(points).get(curve.values[i])
            cells.append(f"{found:.4g} s" if found is not None else "-")
        lines.append(f"  {label:>22}" + "".join(f"{cell:>22}" for cell in cells))
    lines += [f"  - {line}" for line in refusals(curve)]
    return "\n".join(lines) + "\n"


def refusals(curve: Curve) -> list[str]:
    """Lines that say which fabrics refuse which values, and why; those that say the same in one line."""
    said: dict[tuple[int, str], list[str]] = {}
    for (name, i), why in sorted(curve.refused.items(), key=lambda item: item[0][1]):
        said.setdefault((i, why), []).append(name)
    return [f"{', '.join(names)} at {curve.labels[i]}: {why}" for (i, why), names in said.items()]


def curve_data(curve: Curve) -> dict[str, Any]:
    """Plain data."""
    return {
        "key": curve.key,
        "values": list(curve.labels),
        "clean_step_s": {
            name: [dict(points).get(value) for value in curve.values] for name, points in curve.series
        },
        "refused": [
            {"fabric": name, "value": curve.labels[i], "why": said}
            for (name, i), said in sorted(curve.refused.items())
        ],
    }
