"""`fabrictwin serve`: what a benchmark of an inference server would print."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fabrictwin.cli.options import JSON, seeded, written


@click.command()
@click.argument("spec", metavar="SPEC", help="A spec file with workload.serving; - reads it from stdin.")
@JSON
@written("--save", help="Write the result's JSON, each request's times in it.")
@written("--csv", help="Write one line a request.")
@written("--steps", help="Write one line a step of every replica.")
@seeded(help="The benchmark's seed; otherwise the spec's.")
def serve(
    spec: str, as_json: bool, save: Path | None, csv: Path | None, steps: Path | None, seed: int | None
) -> None:
    """Predict the table of `vllm bench serve` for a server: time to first token, time per token, throughput."""
    import json

    from fabrictwin.base.textfile import write_text
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.serving.predict import predict
    from fabrictwin.serving.report.bench import requests_csv, table
    from fabrictwin.serving.report.server import headline, range_lines, served_ranges, steps_csv, without_details

    found = predict(load_spec(spec, sys.stdin), seed=seed)
    if save is not None:
        write_text(save, json.dumps(found.fields) + "\n")
    if csv is not None:
        write_text(csv, requests_csv(found.served))
    if steps is not None:
        write_text(steps, steps_csv(found.replicas))
    if as_json:
        ranges = {key: one.data() for key, one in served_ranges(found).items()}
        click.echo(json.dumps({**without_details(found.fields), "error_ranges": ranges}, indent=2))
        return
    click.echo("\n".join([*headline(found), table(found.fields, found.settings), *range_lines(found)]))
