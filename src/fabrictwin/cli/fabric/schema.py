"""`fabrictwin schema`: the JSON schema of a spec file."""

from __future__ import annotations

import json

import click


@click.command()
def schema() -> None:
    """Print the JSON schema of a spec file, for editors."""
    from fabrictwin.runs.execute import spec_schema

    click.echo(json.dumps(spec_schema(), indent=2))
