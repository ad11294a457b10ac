"""`fabrictwin nccl-tests`: all_reduce_perf and its kin on a cluster of the twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fabrictwin.cli.options import fast_forward as fast_forward_option
from fabrictwin.cli.options import fidelity as fidelity_option
from fabrictwin.cli.options import file, number, written

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
@number("-g", "--ngpus", least=1, default=1, help="GPUs of a thread.")
@number("-t", "--nthreads", least=1, default=1, help="Threads of a process.")
@number("-n", "--iters", least=1, default=20, help="Iterations: printed; on the twin all are alike.")
@number("-w", "--warmup_iters", least=0, default=1, help="The same of those before.")
@number("-c", "--check", least=0, default=1, help="Check results with real data: 0 does not.")
@click.option("-d", "--datatype", default="float", metavar="TYPE", help="NCCL's type, or all.")
@click.option("-o", "--op", default="sum", metavar="OP", help="sum, prod, max, min, avg, mulsum or all.")
@click.option("-r", "--root", default=0, type=int, metavar="N", help="The root; -1 is every rank.")
@number("-N", "--run_cycles", least=1, most=1000, default=1, help="How often to print all rows.")
@written("-J", "--output_file", "output", help="Write JSON as well.")
@fidelity_option("packet", "flow", "analytic", default="flow", help="How closely to simulate.")
@number("--hosts", least=1, help="Hosts to use; otherwise all with GPUs.")
@number("--np", least=1, help="Processes; otherwise as many as fill the hosts.")
@click.option("--nccl-version", default="", metavar="VERSION", help="The NCCL to be, such as 2.21.5.")
@file("--nccl-conf", help="A file like /etc/nccl.conf.")
@fast_forward_option
def nccl_tests(test: str, cluster: str, output: Path | None, fast_forward: str | None, **given: Any) -> None:
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
    if fast_forward is not None:
        spec = spec.with_({"run.packet.fast_forward": fast_forward})
    try:
        with Progress() as progress:
            found = measure(
                test,
                spec,
                environment=os.environ,
                out=sys.stdout,
                notes=sys.stderr,
                stage=progress.stage,
                source=cluster,
                **given,
            )
    except ConfigError as error:
        raise error.within(key=SHORT[error.key]) if error.key in SHORT else error from None
    if output is not None:
        write_text(output, found.json(sys.argv[1:]))
    if found.wrong:
        raise click.exceptions.Exit(1)
