"""`fabrictwin import-config`: what a training framework is told, as a spec's workload."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import number, written


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("source", nargs=-1, type=click.UNPROCESSED, required=True, metavar="FILE | ARGUMENTS...")
@click.option("--model", metavar="CONFIG.json", help="The model, where the file has none or in place of its own.")
@number("--sequence", least=1, most=10**9, help="Tokens of a sequence, where the file does not say.")
@number("--vocabulary", least=1, most=10**9, help="Tokens of the vocabulary, where the file does not say.")
@written("--out", help="The YAML file to write; otherwise it is printed.")
def import_config(
    source: tuple[str, ...],
    model: str | None,
    sequence: int | None,
    vocabulary: int | None,
    out: Path | None,
) -> None:
    """Read a framework's configuration into `workload.training`, and list the keys without effect there.

    Megatron-LM's arguments (a shell script, a file of arguments, or the arguments themselves), DeepSpeed's JSON,
    torchtitan's TOML, NeMo's YAML.
    """
    from fabrictwin.api.specs import import_config as read
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.textfile import write_text

    typed = source[0].startswith("--")
    if not typed and len(source) > 1:
        raise ConfigError(f"got {len(source)} words, expected one file, or arguments that begin with --")
    found = read(list(source) if typed else source[0], model=model, sequence=sequence, vocabulary=vocabulary)
    if out is None:
        click.echo(found.yaml, nl=False)
        return
    write_text(out, found.yaml)
    click.echo(f"{out}, {len(found.assumed)} assumptions, {len(found.unused)} keys without effect")
