"""`fabrictwin perftest`: ib_write_bw and its siblings between two hosts of a cluster."""

from __future__ import annotations

import sys
from typing import Any

import click

from fabrictwin.cli.completion import host_name
from fabrictwin.cli.options import CLUSTER, capture_options


@click.command()
@click.argument("test", metavar="TEST", help="ib_{write,read,send,atomic}_{bw,lat}.")
@CLUSTER
@click.option(
    "--from",
    "source",
    shell_complete=host_name,
    required=True,
    metavar="HOST",
    help="The host that runs the client.",
)
@click.option(
    "--to",
    "target",
    shell_complete=host_name,
    required=True,
    metavar="HOST",
    help="The host that runs the server.",
)
@click.option("-s", "--size", type=int, metavar="BYTES", help="Message size.")
@click.option("-a", "--all", "all_sizes", is_flag=True, help="Sizes from 2 to 2^23.")
@click.option("-n", "--iters", "iterations", type=int, metavar="N", help="Messages of each size.")
@click.option("-b", "--bidirectional", is_flag=True, help="Both hosts send.")
@click.option("-q", "--qp", "queue_pairs", default=1, type=int, metavar="N", help="Queue pairs.")
@click.option("-x", "--gid-index", type=int, metavar="N", help="Entry of the GID table.")
@click.option("-m", "--mtu", type=int, metavar="BYTES", help="Path MTU: 256 to 4096.")
@click.option("-c", "--connection", default="RC", metavar="TYPE", help="RC, UC or UD.")
@click.option("-d", "--ib-dev", "device", metavar="DEV", help="Adapter, on both hosts.")
@click.option("-I", "--inline_size", "inline", type=int, metavar="BYTES", help="Inline up to this.")
@click.option("-t", "--tx-depth", type=int, metavar="N", help="Outstanding work requests.")
@click.option(
    "-o", "--outs", "outstanding", default=16, type=int, metavar="N", help="Outstanding READs and atomics."
)
@click.option("-A", "--atomic_type", "atomic", default="FETCH_AND_ADD", metavar="TYPE", help="Or CMP_AND_SWAP.")
@click.option("--use_cuda", "gpu", type=int, metavar="N", help="Memory of this GPU of each host.")
@click.option("--report_gbits", is_flag=True, help="Gb/sec instead of MB/sec.")
@capture_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def perftest(cluster: str, as_json: bool, **given: Any) -> None:
    """Bandwidth or latency of RDMA between two hosts, packet by packet, as perftest measures and prints it."""
    import json

    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.engines.packet.packet_options import options_of
    from fabrictwin.tools.perftest import perftest_text as text
    from fabrictwin.tools.perftest.perftest_loops import play
    from fabrictwin.tools.perftest.perftest_options import PerftestOptions
    from fabrictwin.twin.routed_twin import make_twin

    options = PerftestOptions(**given)
    with Progress() as progress:
        progress.stage("compiling the fabric")
        spec = load_cluster(cluster, sys.stdin)
        twin = make_twin(spec, build(spec.cluster, spec=spec))
        packet = options_of(spec.run.packet, twin.fabric.technology, spec.run.seed, spec.qos)
        run = play(twin, options, packet, stage=progress.stage)
    click.echo(json.dumps(text.as_json(run), indent=2) if as_json else text.text(run), nl=as_json)
