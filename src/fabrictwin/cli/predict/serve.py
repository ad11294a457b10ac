"""`fabrictwin serve`: what a benchmark of an inference server would print."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

app = typer.Typer()


@app.command()
def serve(
    spec: str = typer.Argument(
        ..., metavar="SPEC", help="A spec file with workload.serving; - reads it from stdin."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result's JSON and nothing else."),
    save: Path | None = typer.Option(
        None, metavar="FILE", help="Write the result's JSON, each request's times in it."
    ),
    csv: Path | None = typer.Option(None, metavar="FILE", help="Write one line a request."),
    steps: Path | None = typer.Option(None, metavar="FILE", help="Write one line a step of every replica."),
    seed: int | None = typer.Option(None, metavar="N", min=0, help="The benchmark's seed; otherwise the spec's."),
) -> None:
    """Predict the table of `vllm bench serve` for a server: time to first token, time per token, throughput."""
    import json

    from fabrictwin.base.textfile import write_text
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.serving.predict import predict
    from fabrictwin.serving.report.bench import requests_csv, table
    from fabrictwin.serving.report.server import headline, steps_csv, without_details

    found = predict(load_spec(spec, sys.stdin), seed=seed)
    if save is not None:
        write_text(save, json.dumps(found.fields) + "\n")
    if csv is not None:
        write_text(csv, requests_csv(found.served))
    if steps is not None:
        write_text(steps, steps_csv(found.replicas))
    if as_json:
        typer.echo(json.dumps(without_details(found.fields), indent=2))
        return
    for line in headline(found):
        typer.echo(line)
    typer.echo(table(found.fields, found.settings))
