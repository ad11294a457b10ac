"""`fabrictwin serve`: what a benchmark of an inference server would print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fabrictwin.cli.options import JSON, seeded, written

if TYPE_CHECKING:
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.serving.predict import Prediction

RECIPES = ("ray", "nodes", "kubernetes")


@click.command()
@click.argument("spec", metavar="SPEC", help="A spec file with workload.serving; - reads it from stdin.")
@JSON
@written("--save", help="Write the result's JSON, each request's times in it.")
@written("--csv", help="Write one line a request; Parquet where FILE ends in .parquet.")
@written("--steps", help="Write one line a step of every replica.")
@written("--page", help="Write a page: queue, KV cache, batches, latencies, where time goes, what would gain.")
@click.option(
    "--check",
    "given",
    metavar="LAUNCH",
    help="Judge a launch on the spec's cluster: 'vllm serve …', a script, a Compose or LeaderWorkerSet file.",
)
@click.option("--emit", type=click.Choice(RECIPES), help="Write how to launch the spec's server, and stop.")
@seeded(help="The benchmark's seed; otherwise the spec's.")
def serve(
    spec: str,
    as_json: bool,
    save: Path | None,
    csv: Path | None,
    steps: Path | None,
    page: Path | None,
    given: str | None,
    emit: str | None,
    seed: int | None,
) -> None:
    """Predict the table of `vllm bench serve` for a server: time to first token, time per token, throughput."""
    import json

    from fabrictwin.api.servers.serve import serve as run_server
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import write_text
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.serving.report.server import steps_csv

    read = load_spec(spec, sys.stdin)
    if emit is not None:
        from fabrictwin.serving.launch.recipe import recipe

        click.echo(recipe(read, emit), nl=False)
        return
    if given is not None:
        _judge(read, given, seed, as_json=as_json)
        return
    with Progress() as progress:
        found = run_server(read, seed=seed, stage=progress.stage)
        if page is not None:
            found.save(page)
    if save is not None:
        write_text(save, json.dumps(found.detail.fields) + "\n")
    if csv is not None:
        _write_requests(found.detail, csv)
    if steps is not None:
        write_text(steps, steps_csv(found.detail.replicas))
    click.echo(found.json() if as_json else str(found), nl=False)


def _write_requests(found: Prediction, path: Path) -> None:
    """Write a row a request, as CSV or Parquet by the ending."""
    from fabrictwin.base.textfile import write_text
    from fabrictwin.serving.report.bench import requests_columns, requests_csv
    from fabrictwin.study.sweep.table_files import write_table

    if path.suffix == ".parquet":
        write_table(path, requests_columns(found.served))
    else:
        write_text(path, requests_csv(found.served))


def _judge(spec: Spec, given: str, seed: int | None, *, as_json: bool) -> None:
    """Print what a launch meets; exit with 1 where vLLM does not start."""
    import json

    from fabrictwin.serving.launch.check import check
    from fabrictwin.serving.report.bench import table
    from fabrictwin.serving.report.server import without_details

    found = check(spec, given, seed=seed)
    answer = found.prediction
    if as_json:
        findings = [{"kind": one.kind, "text": one.text} for one in found.findings]
        fields = without_details(answer.fields) if answer else None
        click.echo(json.dumps({"findings": findings, "result": fields}, indent=2))
    else:
        for one in found.findings:
            click.echo(f"{one.kind + ':':<9} {one.text}")
        if answer:
            click.echo(table(answer.fields, answer.settings))
    if found.refused:
        sys.exit(1)
