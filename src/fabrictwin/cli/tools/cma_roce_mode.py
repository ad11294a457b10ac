"""`fabrictwin cma_roce_mode`: which kind of RoCE connections take."""

from __future__ import annotations

from pathlib import Path

import typer

from fabrictwin.cli.arguments import CLUSTER_FILE

app = typer.Typer(help="Show or set which RoCE a device's connections take.")


@app.command()
def cma_roce_mode(
    cluster: Path = CLUSTER_FILE,
    host: str | None = typer.Option(None, metavar="NAME", help="Whose device; otherwise the first host's."),
    device: str = typer.Option("mlx5_0", "--device", "-d", metavar="NAME", help="The device."),
    port: int = typer.Option(1, "--port", "-p", min=1, max=1, metavar="N", help="Its port."),
    mode: int | None = typer.Option(
        None, "--mode", "-m", min=1, max=2, metavar="N", help="1 is RoCE v1, 2 is RoCE v2."
    ),
) -> None:
    """Show which RoCE a device's connections take, or set it (kept beside the cluster's file)."""
    from fabrictwin.tools.rdma import rdma_tools as face

    adapters = face.pick(face.open_world(cluster), host, device)
    typer.echo(face.cma_roce_mode(cluster, adapters[0], mode))
