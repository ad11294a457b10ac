"""`fabrictwin ibdev2netdev`: which network interface belongs to which device."""

from __future__ import annotations

from pathlib import Path

import typer

from fabrictwin.cli.arguments import CLUSTER_FILE

app = typer.Typer(help="Network interfaces of a host's RDMA devices.")


@app.command()
def ibdev2netdev(
    cluster: Path = CLUSTER_FILE,
    host: str | None = typer.Option(None, metavar="NAME", help="Whose devices; otherwise the first host's."),
    device: str | None = typer.Option(None, "--device", "-d", metavar="NAME", help="One device, such as mlx5_0."),
) -> None:
    """Network interfaces of a host's RDMA devices."""
    from fabrictwin.tools.rdma import rdma_tools as face

    typer.echo(face.ibdev2netdev(face.pick(face.open_world(cluster), host, device)))
