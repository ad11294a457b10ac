"""`fabrictwin sockets`: TCP between two hosts, as netperf, iperf and sockperf measure it."""

from __future__ import annotations

from typing import cast, get_args

import click

from fabrictwin.cli.options import JSON, number
from fabrictwin.engines.sockets.stack import Cores, Network, Path


@click.command()
@click.option("--host", default="dgx-h100", metavar="HOST", help="A host of the catalog, for its processors.")
@click.option("--rate", default="100 Gb/s", metavar="RATE", help="Of the adapters.")
@click.option("--network", type=click.Choice(get_args(Network)), default="ethernet", help="What carries IP.")
@number("--mtu", least=576, most=65520, help="Bytes of an IP packet; otherwise what is usual there.")
@click.option("--path", type=click.Choice(get_args(Path)), default="host", help="What bytes pass in each host.")
@click.option(
    "--cores", type=click.Choice(["together", "apart"]), help="The reader's core beside that of the interrupts."
)
@number("--streams", least=1, most=4096, default=1, help="Connections.")
@number("--threads", least=1, most=4096, help="Threads that serve them at each end; otherwise one each.")
@click.option("--write", default="128 KiB", metavar="SIZE", help="Of each write.")
@click.option("--at-once", is_flag=True, help="Each write leaves as its own segment (TCP_NODELAY).")
@click.option("--size", default="64 B", metavar="SIZE", help="Of a request.")
@JSON
def sockets(
    host: str,
    rate: str,
    network: str,
    mtu: int | None,
    path: str,
    cores: str | None,
    streams: int,
    threads: int | None,
    **sizes: str | bool,
) -> None:
    """Bandwidth of TCP streams and what limits it; time of a request, and requests a second."""
    import json

    from fabrictwin.engines.sockets.stream import Streams
    from fabrictwin.tools.socket_figures import SocketTest, as_data, as_text, socket_figures

    write, size = (_read(name, str(sizes[name])) for name in ("write", "size"))
    test = SocketTest(
        host,
        _read("rate", rate),
        cast(Network, network),
        mtu or 0,
        cast(Path, path),
        cast(Cores, cores or ""),
        Streams(streams, threads or streams, write, bool(sizes["at_once"])),
        size,
    )
    found = socket_figures(test)
    click.echo(json.dumps(as_data(found), indent=2) + "\n" if sizes["as_json"] else as_text(found), nl=False)


def _read(name: str, text: str) -> int:
    """Return a size in bytes, or a rate in bits a second. Raises ConfigError."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.units import parse_rate, parse_size

    try:
        found = (parse_rate if name == "rate" else parse_size)(text)
    except ValueError as error:
        raise ConfigError(str(error), key=f"--{name}") from None
    least, most, range_ = (10**6, 10**14, "1 Mb/s to 100 Tb/s") if name == "rate" else (1, 1 << 40, "1 B to 1 TiB")
    if not least <= found <= most:
        raise ConfigError(f"got {text}, expected {range_}", key=f"--{name}")
    return found
