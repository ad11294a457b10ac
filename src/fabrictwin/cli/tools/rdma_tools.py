"""`fabrictwin ibstat`, `ibv_devinfo`, `ibdev2netdev`, `show_gids`, `cma_roce_mode`: a host's RDMA devices, each as
the tool of that name prints them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fabrictwin.cli.completion import host_name
from fabrictwin.cli.options import CLUSTER_FILE, number

HOST = click.option(
    "--host", metavar="NAME", shell_complete=host_name, help="Whose devices; otherwise the first host's."
)
DEVICE = click.option("--device", "-d", metavar="NAME", help="One device, such as mlx5_0.")


def _tool(name: str, line: str, *options: Callable[[Any], Any]) -> Callable[[Any], click.Command]:
    """Make a command over a host's devices; it prints what the decorated function makes of those asked for."""

    def decorate(printed: Callable[..., str]) -> click.Command:
        def command(cluster: Path, host: str | None, device: str | None, **given: Any) -> None:
            from fabrictwin.base.progress import Progress
            from fabrictwin.tools.rdma import rdma_tools

            with Progress() as progress:
                world = rdma_tools.open_world(cluster, progress.stage)
            adapters = rdma_tools.pick(world, host, device)
            click.echo(printed(rdma_tools, adapters, **given))

        decorated: Any = command
        for option in reversed((CLUSTER_FILE, HOST, DEVICE, *options)):
            decorated = option(decorated)
        return click.command(name, help=line)(decorated)

    return decorate


@_tool("ibstat", "Adapters of a host and their ports, as ibstat prints them.")
def ibstat(tools: Any, adapters: Any) -> str:
    """Text of ibstat."""
    return str(tools.ibstat(adapters))


@_tool("ibdev2netdev", "Network interfaces of a host's RDMA devices.")
def ibdev2netdev(tools: Any, adapters: Any) -> str:
    """Text of ibdev2netdev."""
    return str(tools.ibdev2netdev(adapters))


@_tool("show_gids", "GIDs of a host's RDMA devices, RoCE v1 and v2.")
def show_gids(tools: Any, adapters: Any) -> str:
    """Text of show_gids."""
    return str(tools.show_gids(adapters))


@_tool(
    "ibv_devinfo",
    "RDMA devices of a host, as ibv_devinfo prints them.",
    click.option("--verbose", "-v", is_flag=True, help="Limits and GIDs too."),
    click.option("--list", "-l", "names", is_flag=True, help="Names alone."),
)
def ibv_devinfo(tools: Any, adapters: Any, *, verbose: bool, names: bool) -> str:
    """Text of ibv_devinfo."""
    return str(tools.short_list(adapters) if names else tools.ibv_devinfo(adapters, verbose=verbose))


@click.command()
@CLUSTER_FILE
@HOST
@click.option("--device", "-d", default="mlx5_0", metavar="NAME", help="The device.")
@number("--port", "-p", least=1, most=1, default=1, help="Its port.")
@number("--mode", "-m", least=1, most=2, help="1 is RoCE v1, 2 is RoCE v2.")
def cma_roce_mode(cluster: Path, host: str | None, device: str, port: int, mode: int | None) -> None:
    """Show which RoCE a device's connections take, or set it (kept beside the cluster's file)."""
    from fabrictwin.base.progress import Progress
    from fabrictwin.tools.rdma import rdma_tools

    with Progress() as progress:
        world = rdma_tools.open_world(cluster, progress.stage)
    adapters = rdma_tools.pick(world, host, device)
    click.echo(rdma_tools.cma_roce_mode(cluster, adapters[0], mode))
