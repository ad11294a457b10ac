"""`fabrictwin nccl-tests`: all_reduce_perf and its kin on a cluster of the twin."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

app = typer.Typer()


class Test(StrEnum):
    all_reduce_perf = "all_reduce_perf"
    all_gather_perf = "all_gather_perf"
    reduce_scatter_perf = "reduce_scatter_perf"
    alltoall_perf = "alltoall_perf"
    broadcast_perf = "broadcast_perf"
    reduce_perf = "reduce_perf"
    sendrecv_perf = "sendrecv_perf"


class Fidelity(StrEnum):
    packet = "packet"
    flow = "flow"
    analytic = "analytic"


@app.command()
def nccl_tests(
    test: Test = typer.Argument(..., help="Which test."),
    cluster: str = typer.Option(..., "--cluster", metavar="SPEC", help="A spec file; its cluster is used."),
    minbytes: str = typer.Option("32M", "-b", "--minbytes", metavar="SIZE", help="The first size."),
    maxbytes: str = typer.Option("32M", "-e", "--maxbytes", metavar="SIZE", help="The last size."),
    stepbytes: str = typer.Option("1M", "-i", "--stepbytes", metavar="SIZE", help="What is added to a size."),
    stepfactor: int = typer.Option(1, "-f", "--stepfactor", metavar="N", help="What a size is multiplied by."),
    ngpus: int = typer.Option(1, "-g", "--ngpus", min=1, metavar="N", help="GPUs of a thread."),
    nthreads: int = typer.Option(1, "-t", "--nthreads", min=1, metavar="N", help="Threads of a process."),
    iters: int = typer.Option(
        20, "-n", "--iters", min=1, metavar="N", help="Iterations: printed; on the twin all are alike."
    ),
    warmup: int = typer.Option(1, "-w", "--warmup_iters", min=0, metavar="N", help="The same of those before."),
    check: int = typer.Option(
        1, "-c", "--check", min=0, metavar="N", help="Check results with real data: 0 does not."
    ),
    datatype: str = typer.Option("float", "-d", "--datatype", metavar="TYPE", help="NCCL's type, or all."),
    op: str = typer.Option("sum", "-o", "--op", metavar="OP", help="sum, prod, max, min, avg, mulsum or all."),
    root: int = typer.Option(0, "-r", "--root", metavar="N", help="The root; -1 is every rank."),
    cycles: int = typer.Option(
        1, "-N", "--run_cycles", min=1, max=1000, metavar="N", help="How often to print all rows."
    ),
    output: Path | None = typer.Option(None, "-J", "--output_file", metavar="FILE", help="Write JSON as well."),
    fidelity: Fidelity = typer.Option(Fidelity.flow, help="How closely to simulate."),
    hosts: int | None = typer.Option(None, min=1, metavar="N", help="Hosts to use; otherwise all with GPUs."),
    np: int | None = typer.Option(
        None, "--np", min=1, metavar="N", help="Processes; otherwise as many as fill the hosts."
    ),
    release: str = typer.Option("", "--nccl-version", metavar="VERSION", help="The NCCL to be, such as 2.21.5."),
    conf: Path | None = typer.Option(None, "--nccl-conf", metavar="FILE", help="A file like /etc/nccl.conf."),
) -> None:
    """Measure a collective at growing sizes, as nccl-tests does. NCCL_* are taken from the environment."""
    import os
    import sys

    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import write_text
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.nccl.settings.spec_section import settings_here
    from fabrictwin.runs.twins import make_twin
    from fabrictwin.tools.nccl_tests import perf
    from fabrictwin.tools.nccl_tests.perf_run import play
    from fabrictwin.tools.nccl_tests.perf_text import as_json, wrong_rows

    def size(text: str, key: str) -> int:
        try:
            return perf.parse_size(text)
        except ConfigError as error:
            raise error.within(key=key) from None

    options = perf.Options(
        test=perf.TESTS[test.value],
        min_bytes=size(minbytes, "-b"),
        max_bytes=size(maxbytes, "-e"),
        step_bytes=size(stepbytes, "-i"),
        step_factor=stepfactor,
        iterations=iters,
        warmup=warmup,
        threads=nthreads,
        gpus=ngpus,
        check=check,
        datatype=datatype,
        operation=op,
        root=root,
        cycles=cycles,
    )
    spec = load_cluster(cluster, sys.stdin)
    settings = settings_here(spec, os.environ, release=release, conf=conf)
    for note in settings.notes:
        print(f"note: {note}", file=sys.stderr)
    with Progress() as progress:
        progress.stage("compiling the fabric")
        twin = make_twin(spec, build(spec.cluster, spec=spec))
        rank_node = perf.ranks_of(twin, gpus_per_process=ngpus * nthreads, hosts=hosts, processes=np)
        options, reduced = perf.limited(options, twin, rank_node)
        progress.stage("initialising")
        run = perf.prepare(
            twin,
            options,
            settings=settings,
            rank_node=rank_node,
            packet=spec.run.packet,
            seed=spec.run.seed,
        )
        rows = play(
            run, sys.stdout, fidelity=fidelity.value, source=cluster, stage=progress.stage, reduced=reduced
        )
    if output is not None:
        environment = [f"{name}={value}" for name, value in settings.given]
        write_text(output, as_json(run, rows, arguments=sys.argv[1:], environment=environment))
    if wrong_rows(rows):
        raise typer.Exit(1)
