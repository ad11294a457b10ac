"""Defaults of a workload as they are published: those of `docs/schema`, and the host's calibrated times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fabrictwin.workload.job import workload_section

PUBLISHED = json.loads((Path(__file__).parents[2] / "docs/schema/fabrictwin.schema.json").read_text())["$defs"]
SECTIONS = [name for name in PUBLISHED if hasattr(workload_section, name)]
US, MS = 10**6, 10**9


def said(kind: Any) -> dict[str, Any]:
    """Defaults and bounds of a section's fields."""
    found = {}
    for name, field in kind.model_json_schema(by_alias=True)["properties"].items():
        found[name] = {
            key: field[key] for key in ("default", "minimum", "maximum", "exclusiveMinimum") if key in field
        }
    return found


def test_the_sections_of_a_job_are_published():
    assert len(SECTIONS) >= 5


@pytest.mark.parametrize("name", SECTIONS)
def test_defaults_and_bounds_are_those_that_are_published(name):
    published = {
        key: {k: field[k] for k in ("default", "minimum", "maximum", "exclusiveMinimum") if k in field}
        for key, field in PUBLISHED[name]["properties"].items()
    }
    found = said(getattr(workload_section, name))
    for key, field in published.items():
        for which, value in field.items():
            if not isinstance(value, dict | str):
                assert found[key].get(which) == value, (key, which)


def test_times_of_the_host_are_those_that_were_calibrated():
    """Figures of docs/validation.md: 5 µs a launch, 235 µs and 124 µs an expert routed, 949 µs interleaved."""
    host = workload_section.HostSide()
    assert (host.launch, host.step, host.routing, host.expert, host.interleaved) == (
        None, 0, 235 * US, 124 * US, 949 * US,
    )  # fmt: skip
    assert workload_section.LAUNCH_PS == 5 * US
    sharding = workload_section.Sharding()
    assert (sharding.strategy, sharding.prefetch, sharding.reshard_after_forward) == ("none", 1, True)
    wide = workload_section.WideLayers()
    assert (wide.first, wide.last) == (0, 0)
    assert MS == 1000 * US
