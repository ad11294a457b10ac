"""`fabrictwin show_gids`: the GIDs of a host's devices."""

from __future__ import annotations

from pathlib import Path

import typer

from fabrictwin.cli.arguments import CLUSTER_FILE

app = typer.Typer(help="GIDs of a host's RDMA devices, RoCE v1 and v2.")


@app.command()
def show_gids(
    cluster: Path = CLUSTER_FILE,
    host: str | None = typer.Option(None, metavar="NAME", help="Whose devices; otherwise the first host's."),
    device: str | None = typer.Option(None, "--device", "-d", metavar="NAME", help="One device, such as mlx5_0."),
) -> None:
    """GIDs of a host's RDMA devices, RoCE v1 and v2."""
    from fabrictwin.tools.rdma import rdma_tools as face

    typer.echo(face.show_gids(face.pick(face.open_world(cluster), host, device)))
