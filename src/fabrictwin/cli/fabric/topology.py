"""`fabrictwin topology`: look at a cluster and at paths through it, import a real one, write one out."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from fabrictwin.cli.arguments import CLUSTER, Group

app = typer.Typer(cls=Group, help="Show, import or export a cluster.", no_args_is_help=True)


class ImportFormat(StrEnum):
    ibnetdiscover = "ibnetdiscover"


class ExportFormat(StrEnum):
    yaml = "yaml"
    ibnetdiscover = "ibnetdiscover"
    dot = "dot"


@app.command()
def show(
    spec: str = CLUSTER,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Count hosts, switches and links; show ports used and oversubscription by tier, and notes."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.describe import describe, summary_lines
    from fabrictwin.cluster.spec.spec import load_cluster

    read = load_cluster(spec, sys.stdin)
    facts = describe(build(read.cluster, spec=read))
    if as_json:
        _print_json(facts)
    else:
        typer.echo("\n".join(summary_lines(facts)))


@app.command("import")
def import_(
    file: Path = typer.Argument(..., metavar="FILE", help="What the tool printed."),
    source: ImportFormat = typer.Option(ImportFormat.ibnetdiscover, "--format", help="The tool."),
    bind: list[str] = typer.Option(
        [],
        metavar="GLOB=HOST[,HCA=NIC...]",
        help="Hosts of these names are that catalog host: 'luna-*=dgx-a100'. Repeat for more.",
    ),
    switch: list[str] = typer.Option(
        [], metavar="GLOB=TYPE", help="Switches of these names are that catalog switch. Repeat for more."
    ),
    host_cable: str = typer.Option("3 m", metavar="LENGTH", help="Length of cables to hosts."),
    trunk_cable: str = typer.Option("20 m", metavar="LENGTH", help="Length of cables between switches."),
    out: Path | None = typer.Option(None, metavar="FILE", help="Where to write the cluster; otherwise stdout."),
) -> None:
    """Turn a discovered fabric into a cluster file, and report what could not be placed."""
    from fabrictwin.cluster.describe import describe, summary_lines
    from fabrictwin.cluster.export import to_yaml
    from fabrictwin.cluster.importers.bindings import import_ibnetdiscover

    blueprint = import_ibnetdiscover(
        file, bind=bind, switch=switch, host_cable=host_cable, trunk_cable=trunk_cable
    )
    _write(to_yaml(blueprint), out)
    typer.echo("\n".join(summary_lines(describe(blueprint))), err=out is None)


@app.command()
def export(
    spec: str = CLUSTER,
    target: ExportFormat = typer.Option(ExportFormat.yaml, "--format", help="What to write."),
    out: Path | None = typer.Option(None, metavar="FILE", help="Where to write it; otherwise stdout."),
) -> None:
    """Write a cluster out: every cable in YAML, as ibnetdiscover would print it, or as a Graphviz drawing."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.export import to_dot, to_ibnetdiscover, to_yaml
    from fabrictwin.cluster.spec.spec import load_cluster

    read = load_cluster(spec, sys.stdin)
    writers = {"yaml": to_yaml, "ibnetdiscover": to_ibnetdiscover, "dot": to_dot}
    _write(writers[target.value](build(read.cluster, spec=read)), out)


@app.command()
def path(
    spec: str = CLUSTER,
    source: str = typer.Argument(..., metavar="SOURCE", help="A GPU, such as host-0/gpu0."),
    destination: str = typer.Argument(..., metavar="DESTINATION", help="Another."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Name every hop between two GPUs as the forwarding tables have it."""
    from dataclasses import asdict

    from fabrictwin.base.units import format_rate, format_time
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.runs.twins import make_twin

    read = load_cluster(spec, sys.stdin)
    hops, latency_ps = make_twin(read, build(read.cluster, spec=read)).path(source, destination)
    if as_json:
        _print_json({"latency_ps": latency_ps, "hops": [asdict(hop) for hop in hops]})
        return
    width = max((len(hop.link) for hop in hops), default=0)
    for hop in hops:
        part = "" if hop.share == 1 else f"  {hop.share:.1%} of the bytes"
        typer.echo(f"{hop.link:{width}}  {hop.kind:10}  {format_rate(hop.rate_bps):>9}{part}")
    typer.echo(f"latency of an empty message: {format_time(latency_ps)}")


@app.command()
def matrix(
    spec: str = CLUSTER,
    host: str = typer.Option("", "--host", metavar="NAME", help="Which host; otherwise the first with GPUs."),
    xml: Path | None = typer.Option(
        None, "--xml", metavar="FILE", help="Also write the host as NCCL's topology XML."
    ),
) -> None:
    """How GPUs and adapters of a host are joined, as `nvidia-smi topo -m` shows it."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.nccl.topology.host_views import host_matrix
    from fabrictwin.runs.twins import make_twin

    read = load_cluster(spec, sys.stdin)
    text, topology = host_matrix(make_twin(read, build(read.cluster, spec=read)).fabric, host)
    if xml is not None:
        _write(topology, xml)
    typer.echo(text)


def _write(text: str, out: Path | None) -> None:
    from fabrictwin.base.textfile import write_text

    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)


def _print_json(data: Any) -> None:
    import json

    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
