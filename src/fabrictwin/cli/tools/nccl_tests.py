"""`fabrictwin nccl-tests`: all_reduce_perf and its kin on a cluster of the twin."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import fidelity as fidelity_option

# options by which sizes are typed
SHORT = {"minbytes": "-b", "maxbytes": "-e", "stepbytes": "-i"}


@click.command()
@click.argument(
    "test",
    type=click.Choice(
        [
            "all_reduce_perf",
            "all_gather_perf",
            "reduce_scatter_perf",
            "alltoall_perf",
            "broadcast_perf",
            "reduce_perf",
            "sendrecv_perf",
        ]
    ),
    help="Which test.",
)
@click.option("--cluster", required=True, metavar="SPEC", help="A spec file; its cluster is used.")
@click.option("-b", "--minbytes", default="32M", metavar="SIZE", help="The first size.")
@click.option("-e", "--maxbytes", default="32M", metavar="SIZE", help="The last size.")
@click.option("-i", "--stepbytes", default="1M", metavar="SIZE", help="What is added to a size.")
@click.option("-f", "--stepfactor", default=1, type=int, metavar="N", help="What a size is multiplied by.")
@click.option("-g", "--ngpus", default=1, type=click.IntRange(min=1), metavar="N", help="GPUs of a thread.")
@click.option("-t", "--nthreads", default=1, type=click.IntRange(min=1), metavar="N", help="Threads of a process.")
@click.option(
    "-n",
    "--iters",
    default=20,
    type=click.IntRange(min=1),
    metavar="N",
    help="Iterations: printed; on the twin all are alike.",
)
@click.option(
    "-w",
    "--warmup_iters",
    "warmup",
    default=1,
    type=click.IntRange(min=0),
    metavar="N",
    help="The same of those before.",
)
@click.option(
    "-c",
    "--check",
    default=1,
    type=click.IntRange(min=0),
    metavar="N",
    help="Check results with real data: 0 does not.",
)
@click.option("-d", "--datatype", default="float", metavar="TYPE", help="NCCL's type, or all.")
@click.option("-o", "--op", default="sum", metavar="OP", help="sum, prod, max, min, avg, mulsum or all.")
@click.option("-r", "--root", default=0, type=int, metavar="N", help="The root; -1 is every rank.")
@click.option(
    "-N",
    "--run_cycles",
    "cycles",
    default=1,
    type=click.IntRange(min=1, max=1000),
    metavar="N",
    help="How often to print all rows.",
)
@click.option(
    "-J", "--output_file", "output", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON as well."
)
@fidelity_option("packet", "flow", "analytic", default="flow", help="How closely to simulate.")
@click.option("--hosts", type=click.IntRange(min=1), metavar="N", help="Hosts to use; otherwise all with GPUs.")
@click.option(
    "--np", type=click.IntRange(min=1), metavar="N", help="Processes; otherwise as many as fill the hosts."
)
@click.option("--nccl-version", "release", default="", metavar="VERSION", help="The NCCL to be, such as 2.21.5.")
@click.option(
    "--nccl-conf", "conf", type=click.Path(path_type=Path), metavar="FILE", help="A file like /etc/nccl.conf."
)
def nccl_tests(
    test: str,
    cluster: str,
    minbytes: str,
    maxbytes: str,
    stepbytes: str,
    stepfactor: int,
    ngpus: int,
    nthreads: int,
    iters: int,
    warmup: int,
    check: int,
    datatype: str,
    op: str,
    root: int,
    cycles: int,
    output: Path | None,
    fidelity: str,
    hosts: int | None,
    np: int | None,
    release: str,
    conf: Path | None,
) -> None:
    """Measure a collective at growing sizes, as nccl-tests does. NCCL_* are taken from the environment."""
    import os
    import sys

    from fabrictwin.api.nccl_tests import nccl_tests as measure
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import write_text
    from fabrictwin.cluster.spec.spec import load_cluster

    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError("cannot be written: its folder is not there", file=output)
    spec = load_cluster(cluster, sys.stdin)
    try:
        with Progress() as progress:
            found = measure(
                test,
                spec,
                fidelity=fidelity,
                environment=os.environ,
                out=sys.stdout,
                notes=sys.stderr,
                stage=progress.stage,
                source=cluster,
                minbytes=minbytes,
                maxbytes=maxbytes,
                stepbytes=stepbytes,
                stepfactor=stepfactor,
                ngpus=ngpus,
                nthreads=nthreads,
                iters=iters,
                warmup_iters=warmup,
                check=check,
                datatype=datatype,
                op=op,
                root=root,
                run_cycles=cycles,
                hosts=hosts,
                np=np,
                nccl_version=release,
                nccl_conf=conf,
            )
    except ConfigError as error:
        raise error.within(key=SHORT[error.key]) if error.key in SHORT else error from None
    if output is not None:
        write_text(output, found.json(sys.argv[1:]))
    if found.wrong:
        raise click.exceptions.Exit(1)
