"""`fabrictwin perftest`: ib_write_bw and its siblings between two hosts of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from fabrictwin.cli.arguments import CLUSTER

app = typer.Typer()


@app.command()
def perftest(
    test: str = typer.Argument(..., metavar="TEST", help="ib_{write,read,send,atomic}_{bw,lat}."),
    cluster: str = CLUSTER,
    source: str = typer.Option(..., "--from", metavar="HOST", help="The host that runs the client."),
    target: str = typer.Option(..., "--to", metavar="HOST", help="The host that runs the server."),
    size: int | None = typer.Option(None, "-s", "--size", metavar="BYTES", help="Message size."),
    all_sizes: bool = typer.Option(False, "-a", "--all", help="Sizes from 2 to 2^23."),
    iterations: int | None = typer.Option(None, "-n", "--iters", metavar="N", help="Messages of each size."),
    bidirectional: bool = typer.Option(False, "-b", "--bidirectional", help="Both hosts send."),
    queue_pairs: int = typer.Option(1, "-q", "--qp", metavar="N", help="Queue pairs."),
    gid_index: int | None = typer.Option(None, "-x", "--gid-index", metavar="N", help="Entry of the GID table."),
    mtu: int | None = typer.Option(None, "-m", "--mtu", metavar="BYTES", help="Path MTU: 256 to 4096."),
    connection: str = typer.Option("RC", "-c", "--connection", metavar="TYPE", help="RC, UC or UD."),
    device: str | None = typer.Option(None, "-d", "--ib-dev", metavar="DEV", help="Adapter, on both hosts."),
    inline: int | None = typer.Option(None, "-I", "--inline_size", metavar="BYTES", help="Inline up to this."),
    tx_depth: int | None = typer.Option(None, "-t", "--tx-depth", metavar="N", help="Outstanding work requests."),
    outstanding: int = typer.Option(16, "-o", "--outs", metavar="N", help="Outstanding READs and atomics."),
    atomic: str = typer.Option("FETCH_AND_ADD", "-A", "--atomic_type", metavar="TYPE", help="Or CMP_AND_SWAP."),
    gpu: int | None = typer.Option(None, "--use_cuda", metavar="N", help="Memory of this GPU of each host."),
    report_gbits: bool = typer.Option(False, "--report_gbits", help="Gb/sec instead of MB/sec."),
    pcap: Path | None = typer.Option(None, "--pcap", metavar="FILE", help="Capture packets to a pcapng file."),
    pcap_at: list[str] | None = typer.Option(
        None, "--pcap-at", metavar="NAME", help="Capture at this host or adapter (repeatable); otherwise at all."
    ),
    snaplen: int = typer.Option(0, "--snaplen", metavar="BYTES", min=0, help="Keep so much of a packet; 0: all."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Bandwidth or latency of RDMA between two hosts, packet by packet, as perftest measures and prints it."""
    import json

    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.engines.packet.packet_options import options_of
    from fabrictwin.runs.twins import make_twin
    from fabrictwin.tools.perftest import perftest_text as text
    from fabrictwin.tools.perftest.perftest_loops import play
    from fabrictwin.tools.perftest.perftest_options import PerftestOptions

    options = PerftestOptions(
        test=test,
        source=source,
        target=target,
        size=size,
        all_sizes=all_sizes,
        iterations=iterations,
        bidirectional=bidirectional,
        queue_pairs=queue_pairs,
        gid_index=gid_index,
        mtu=mtu,
        report_gbits=report_gbits,
        device=device,
        connection=connection,
        inline=inline,
        tx_depth=tx_depth,
        outstanding=outstanding,
        atomic=atomic,
        gpu=gpu,
        pcap=pcap,
        pcap_at=tuple(pcap_at or ()),
        snaplen=snaplen,
    )
    with Progress() as progress:
        progress.stage("compiling the fabric")
        spec = load_cluster(cluster, sys.stdin)
        twin = make_twin(spec, build(spec.cluster, spec=spec))
        packet = options_of(spec.run.packet, twin.fabric.technology, spec.run.seed)
        progress.stage("simulating")
        run = play(twin, options, packet)
    typer.echo(json.dumps(text.as_json(run), indent=2) if as_json else text.text(run), nl=as_json)
