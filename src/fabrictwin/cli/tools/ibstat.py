"""`fabrictwin ibstat`: a host's adapters as ibstat prints them."""

from __future__ import annotations

from pathlib import Path

import typer

from fabrictwin.cli.arguments import CLUSTER_FILE

app = typer.Typer(help="Adapters of a host and their ports, as ibstat prints them.")


@app.command()
def ibstat(
    cluster: Path = CLUSTER_FILE,
    host: str | None = typer.Option(None, metavar="NAME", help="Whose devices; otherwise the first host's."),
    device: str | None = typer.Option(None, "--device", "-d", metavar="NAME", help="One device, such as mlx5_0."),
) -> None:
    """Adapters of a host and their ports, as ibstat prints them."""
    from fabrictwin.tools.rdma import rdma_tools as face

    typer.echo(face.ibstat(face.pick(face.open_world(cluster), host, device)))
