"""`fabrictwin ibv_devinfo`: a host's RDMA devices as ibv_devinfo prints them."""

from __future__ import annotations

from pathlib import Path

import typer

from fabrictwin.cli.arguments import CLUSTER_FILE

app = typer.Typer(help="RDMA devices of a host, as ibv_devinfo prints them.")


@app.command()
def ibv_devinfo(
    cluster: Path = CLUSTER_FILE,
    host: str | None = typer.Option(None, metavar="NAME", help="Whose devices; otherwise the first host's."),
    device: str | None = typer.Option(None, "--device", "-d", metavar="NAME", help="One device, such as mlx5_0."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Limits and GIDs too."),
    names: bool = typer.Option(False, "--list", "-l", help="Names alone."),
) -> None:
    """RDMA devices of a host, as ibv_devinfo prints them."""
    from fabrictwin.tools.rdma import rdma_tools as face

    found = face.pick(face.open_world(cluster), host, device)
    typer.echo(face.short_list(found) if names else face.ibv_devinfo(found, verbose=verbose))
