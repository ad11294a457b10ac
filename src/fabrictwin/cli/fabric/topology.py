"""`fabrictwin topology`: look at a cluster and at paths through it, import a real one, write one out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabrictwin.cli.completion import gpu_name, host_name
from fabrictwin.cli.options import CLUSTER, FILE, JSON, Group, repeated, written

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.cluster.blueprint import Blueprint
    from fabrictwin.cluster.spec.spec import Spec


@click.group(cls=Group, no_args_is_help=True)
def topology() -> None:
    """Show, import or export a cluster."""


@topology.command()
@CLUSTER
@JSON
def show(cluster: str, as_json: bool) -> None:
    """Count hosts, switches and links; show ports used and oversubscription by tier, and notes."""
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.describe import describe, summary_lines

    with Progress() as progress:
        _, blueprint = _built(cluster, progress.stage)
        progress.stage("counting", 0.7)
        facts = describe(blueprint)
    if as_json:
        _print_json(facts)
    else:
        click.echo("\n".join(summary_lines(facts)))


@topology.command("import")
@click.argument("file", type=FILE, metavar="FILE", help="What the tool printed.")
@click.option(
    "--format", "source", default="ibnetdiscover", type=click.Choice(["ibnetdiscover"]), help="The tool."
)
@repeated(
    "--bind",
    metavar="GLOB=HOST[,HCA=NIC...]",
    help="Hosts of these names are that catalog host: 'luna-*=dgx-a100'. Repeat for more.",
)
@repeated(
    "--switch", metavar="GLOB=TYPE", help="Switches of these names are that catalog switch. Repeat for more."
)
@click.option("--host-cable", default="3 m", metavar="LENGTH", help="Length of cables to hosts.")
@click.option("--trunk-cable", default="20 m", metavar="LENGTH", help="Length of cables between switches.")
@written("--out", help="Where to write the cluster; otherwise stdout.")
def import_(
    file: Path,
    source: str,
    bind: tuple[str, ...],
    switch: tuple[str, ...],
    host_cable: str,
    trunk_cable: str,
    out: Path | None,
) -> None:
    """Turn a discovered fabric into a cluster file, and report what could not be placed."""
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.describe import describe, summary_lines
    from fabrictwin.cluster.export import to_yaml
    from fabrictwin.cluster.importers.bindings import import_ibnetdiscover

    with Progress() as progress:
        progress.stage(f"reading {file.name}", 0.0)
        blueprint = import_ibnetdiscover(
            file, bind=bind, switch=switch, host_cable=host_cable, trunk_cable=trunk_cable
        )
        progress.stage("counting", 0.6)
        lines = summary_lines(describe(blueprint))
        progress.stage("writing", 0.8)
        text = to_yaml(blueprint)
    _write(text, out)
    click.echo("\n".join(lines), err=out is None)


@topology.command()
@CLUSTER
@click.option(
    "--format",
    "target",
    default="yaml",
    type=click.Choice(["yaml", "ibnetdiscover", "dot"]),
    help="What to write.",
)
@written("--out", help="Where to write it; otherwise stdout.")
def export(cluster: str, target: str, out: Path | None) -> None:
    """Write a cluster out: every cable in YAML, as ibnetdiscover would print it, or as a Graphviz drawing."""
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.export import to_dot, to_ibnetdiscover, to_yaml

    writers = {"yaml": to_yaml, "ibnetdiscover": to_ibnetdiscover, "dot": to_dot}
    with Progress() as progress:
        _, blueprint = _built(cluster, progress.stage)
        progress.stage(f"writing {target}", 0.6)
        text = writers[target](blueprint)
    _write(text, out)


@topology.command()
@CLUSTER
@click.argument("source", metavar="SOURCE", shell_complete=gpu_name, help="A GPU, such as host-0/gpu0.")
@click.argument("destination", metavar="DESTINATION", shell_complete=gpu_name, help="Another.")
@JSON
def path(cluster: str, source: str, destination: str, as_json: bool) -> None:
    """Name every hop between two GPUs as the forwarding tables have it."""
    from dataclasses import asdict

    from fabrictwin.base.progress import Progress
    from fabrictwin.base.units import format_rate, format_time
    from fabrictwin.twin.routed_twin import make_twin

    with Progress() as progress:
        read, blueprint = _built(cluster, progress.stage)
        progress.stage("compiling the fabric", 0.4)
        twin = make_twin(read, blueprint)
        progress.stage("filling tables", 0.7)
        hops, latency_ps = twin.path(source, destination)
    if as_json:
        _print_json({"latency_ps": latency_ps, "hops": [asdict(hop) for hop in hops]})
        return
    width = max((len(hop.link) for hop in hops), default=0)
    for hop in hops:
        part = "" if hop.share == 1 else f"  {hop.share:.1%} of the bytes"
        click.echo(f"{hop.link:{width}}  {hop.kind:10}  {format_rate(hop.rate_bps):>9}{part}")
    click.echo(f"latency of an empty message: {format_time(latency_ps)}")


@topology.command()
@CLUSTER
@click.option(
    "--host",
    default="",
    metavar="NAME",
    shell_complete=host_name,
    help="Which host; otherwise the first with GPUs.",
)
@written("--xml", help="Also write the host as NCCL's topology XML.")
def matrix(cluster: str, host: str, xml: Path | None) -> None:
    """Show how GPUs and adapters of a host are joined, as `nvidia-smi topo -m` does."""
    from fabrictwin.base.progress import Progress
    from fabrictwin.nccl.topology.host_views import host_matrix
    from fabrictwin.twin.routed_twin import make_twin

    with Progress() as progress:
        read, blueprint = _built(cluster, progress.stage)
        progress.stage("compiling the fabric", 0.5)
        text, topology = host_matrix(make_twin(read, blueprint).fabric, host)
    if xml is not None:
        _write(topology, xml)
    click.echo(text)


def _built(cluster: str, stage: Stage) -> tuple[Spec, Blueprint]:
    """A cluster's file, and every host, switch and cable of it. Raises ConfigError."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_cluster

    stage("reading the cluster", 0.0)
    read = load_cluster(cluster, sys.stdin)
    stage("building the cluster", 0.1)
    return read, build(read.cluster, spec=read)


def _write(text: str, out: Path | None) -> None:
    from fabrictwin.base.textfile import write_text

    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)


def _print_json(data: Any) -> None:
    import json

    click.echo(json.dumps(data, indent=2, ensure_ascii=False))
