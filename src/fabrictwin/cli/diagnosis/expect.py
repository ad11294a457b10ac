"""`fabrictwin expect`: the bandwidths that tests of a cluster should show."""

from __future__ import annotations

import click

from fabrictwin.cli.completion import host_type
from fabrictwin.cli.options import JSON


@click.command()
@click.argument(
    "hardware", metavar="HOST", shell_complete=host_type, help="A host of the catalog, such as dgx-h100."
)
@click.option("--hosts", default="1,2", metavar="N,N", help="Numbers of hosts.")
@click.option(
    "--fabric", type=click.Choice(["infiniband", "ethernet"]), default="infiniband", help="Their network."
)
@click.option("--tests", default="all_reduce_perf", metavar="NAME,NAME", help="nccl-tests' programs.")
@click.option("--sizes", default="64M,1G,8G,16G", metavar="SIZE,SIZE", help="Bytes, as nccl-tests reads them.")
@click.option("--nccl-version", default="", metavar="X.Y.Z", help="NCCL's release.")
@click.option(
    "--tolerance", default=0.1, type=click.FloatRange(0.0, 0.9), metavar="SHARE", help="Below, it fails."
)
@click.option("--format", "shape", type=click.Choice(["table", "yaml", "nhc", "aznhc"]), default="table",
              help="A table, YAML, or lines of node health checks.")  # fmt: skip
@click.option("--spec", default="", metavar="SPEC", help="Step times of this spec's job, too.")
@JSON
def expect(
    hardware: str,
    hosts: str,
    fabric: str,
    tests: str,
    sizes: str,
    nccl_version: str,
    tolerance: float,
    shape: str,
    spec: str,
    as_json: bool,
) -> None:
    """Print the bandwidths that nccl-tests and perftest should show on hardware, with tolerances."""
    import json

    from fabrictwin.base.errors import ConfigError, quoted
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.whole_numbers import whole
    from fabrictwin.diagnosis.expectation import figures
    from fabrictwin.tools.nccl_tests.perf import parse_size

    try:
        counts = tuple(whole(part.strip(), least=1, most=4096) for part in hosts.split(","))
    except ValueError:
        raise ConfigError(
            f"got {quoted(hosts)}, expected numbers of hosts from 1 to 4096, such as 1,2,8", key="--hosts"
        ) from None
    asked = figures.Asked(
        host=hardware,
        hosts=counts,
        fabric=fabric,
        tests=tuple(tests.split(",")),
        sizes=tuple(parse_size(part) for part in sizes.split(",")),
        release=nccl_version,
        tolerance=tolerance,
        spec=spec,
    )
    with Progress() as progress:
        found = figures.figures(asked, stage=progress.stage)
    if as_json:
        click.echo(json.dumps(figures.as_data(asked, found), indent=2))
        return
    click.echo(figures.SHAPES[shape](asked, found), nl=False)
