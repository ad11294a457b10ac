"""`fabrictwin campaign`: months of a training run, with its failures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fabrictwin.cli.options import JSON, number, seeded, show, study_terms, written
from fabrictwin.cli.options import fidelity as fidelity_option


@click.command()
@click.argument(
    "spec", metavar="SPEC", help="A spec file; - reads it from stdin. Its campaign section says what fails."
)
@click.option("--tokens", metavar="N", help="How much is trained, such as 15.6T; otherwise the section's.")
@click.option(
    "--days", type=click.FloatRange(min=0.01, max=3650), metavar="DAYS", help="Or so long, by the calendar."
)
@click.option("--failures", metavar="NAME", help="A failure log of the catalog; otherwise the section's.")
@click.option("--every", metavar="TIME", help="Training between checkpoints, or best; otherwise the section's.")
@number("--runs", least=1, most=100000, help="Campaigns to play; otherwise the section's, or 200.")
@click.option("--fabrics", metavar="NAME,NAME,...", help="Presets to put the same hosts and job on.")
@fidelity_option("flow", "analytic", help="Of the step; otherwise the spec's.")
@seeded(help="The seed; otherwise the section's, or the spec's.")
@study_terms
@written("--out", help="Write a page with plots.")
@JSON
def campaign(
    spec: str,
    fabrics: str | None,
    fidelity: str | None,
    terms: dict[str, Any],
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Time to train through failures, restarts and checkpoints: what is lost to what, how often to save.

    The spec's campaign section says what fails and what is done about it; options go over it.
    """
    from fabrictwin.api.campaign import campaign as study
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.runs import execute

    read = execute.with_overrides(load_spec(spec, sys.stdin), fidelity=fidelity)
    if asked["tokens"] is not None and asked["days"] is not None:
        raise ConfigError("got --tokens and --days, expected one", key="--days")
    edits = {f"campaign.{key}": value for key, value in asked.items() if value is not None and key != "every"}
    if asked["every"] is not None:
        edits["campaign.checkpoint.every"] = asked["every"]
    lengths = ("tokens", "days", "steps")
    if (given := next((key for key in lengths if asked.get(key) is not None), None)) is not None:
        section = {key: value for key, value in (read.campaign or {}).items() if key not in lengths}
        read = read.model_copy(update={"campaign": {**section, given: asked[given]}})
    if edits:
        read = read.with_(edits)
    with Progress() as progress:
        named = [name.strip() for name in (fabrics or "").split(",") if name.strip()]
        found = study(read, fabrics=named, stage=progress.stage, **terms)
    show(found, out, as_json=as_json)
