"""`fabrictwin routes`: judge forwarding tables, the twin's or dumped ones; compare two; print them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabrictwin.base.records import record
from fabrictwin.cli.fabric.engine_options import EngineOptions, engine_options
from fabrictwin.cli.options import CLUSTER, ENGINE, JSON, Group, file, number, seeded, written

if TYPE_CHECKING:
    from fabrictwin.fabric.fabric import Fabric
    from fabrictwin.routing.check.comparison import Beside
    from fabrictwin.routing.check.judge import AllToAll, Deadlock, Judgement, Permutations
    from fabrictwin.routing.engines.filling import Tables
    from fabrictwin.routing.engines.routing_options import Options
    from fabrictwin.routing.graph.switches import Lids, Switches


@click.group(cls=Group, no_args_is_help=True)
def routes() -> None:
    """Judge forwarding tables, compare two, print them."""


UNSOUND = 1


@routes.command()
@CLUSTER
@ENGINE
@file("--tables", help="Judge what ibroute or dump_lfts printed.")
@engine_options
@number("--shifts", least=1, help="How many shift permutations to look at; otherwise as many as take seconds.")
@number("--random", least=1, default=32, help="How many random permutations to look at.")
@seeded(default=0, help="Seed of the random permutations.")
@click.option(
    "--order",
    default="tree",
    type=click.Choice(["tree", "hosts"]),
    help="Adapters in the order of the tree, or of the cluster's hosts.",
)
@JSON
def check(
    cluster: str,
    engine: str,
    tables: Path | None,
    given: EngineOptions,
    shifts: int | None,
    random: int,
    seed: int,
    order: str,
    as_json: bool,
) -> None:
    """Judge tables: who is reached, hops, deadlock freedom, congestion. Exit code 1 where they are unsound."""
    from itertools import count

    from fabrictwin.base.progress import Progress, part
    from fabrictwin.routing.check.comparison import beside, judgements
    from fabrictwin.routing.check.judge import Ends, judge

    with Progress() as progress:
        progress.stage("building the cluster")
        bench = _Bench.of(cluster, given.read())
        progress.stage("filling tables")
        lids, made = bench.tables(engine if tables is None else str(tables), dumped=tables is not None)
        ends = Ends(bench.slowness(), bench.by_hosts() if order == "hosts" else None)
        whole, turn = judgements(made.engine), count()

        def judged(tables: Tables) -> Judgement:
            done = next(turn)
            return judge(
                bench.switches,
                lids,
                tables,
                ends=ends,
                shifts=shifts,
                random=random,
                seed=seed,
                stage=part(progress.stage, done / whole, (done + 1) / whole),
            )

        verdict = judged(made)
        others = beside(verdict, bench.switches, lids, bench.options, judged)
    if as_json:
        from dataclasses import asdict

        found = {"sound": verdict.sound, "remark": made.remark, **asdict(verdict)}
        _print_json(found | ({"beside": [asdict(other) for other in others]} if others else {}))
    else:
        click.echo("\n".join([*_lines(verdict, made.remark), *_beside(verdict.engine, others)]))
    if not verdict.sound:
        raise click.exceptions.Exit(UNSOUND)


@routes.command()
@CLUSTER
@click.argument("left", metavar="LEFT", help="An engine, or a file that ibroute or dump_lfts printed.")
@click.argument("right", metavar="RIGHT", help="Another.")
@engine_options
@JSON
def diff(
    cluster: str,
    left: str,
    right: str,
    given: EngineOptions,
    as_json: bool,
) -> None:
    """Compare two tables: entries, and the paths that packets take."""
    from dataclasses import asdict

    from fabrictwin.base.progress import Progress
    from fabrictwin.routing.check.difference import difference

    with Progress() as progress:
        progress.stage("building the cluster", 0.0)
        bench = _Bench.of(cluster, given.read())
        sides = []
        for done, source in enumerate((left, right), 1):
            progress.stage(f"filling tables of {source}", done / 4)
            sides.append(bench.either(source))
        progress.stage("comparing paths", 3 / 4)
        found = difference(bench.switches, *sides)
    if as_json:
        _print_json(asdict(found))
        return
    rows = [
        ("entries", f"{found.entries_changed} of {found.entries} differ, on {found.switches_changed} switches"),
        (
            "paths",
            f"{found.paths_changed} of {found.paths} differ, {found.shorter} shorter, {found.longer} longer",
        ),
        ("reach", f"{found.paths_lost} paths lost, {found.paths_gained} gained, {found.paths_broken} in neither"),
        ("LIDs", f"{found.lids_moved} differ"),
    ]
    click.echo("\n".join(f"{title:10}{text}" for title, text in rows))
    for example in found.examples:
        click.echo(f"  {example}")


@routes.command()
@CLUSTER
@ENGINE
@engine_options
@written("--out", help="Where to write; otherwise stdout.")
def dump(cluster: str, engine: str, given: EngineOptions, out: Path | None) -> None:
    """Print tables as dump_lfts does."""
    from fabrictwin.base.textfile import write_text
    from fabrictwin.routing.check.dump import format_dump

    bench = _Bench.of(cluster, given.read())
    lids, made = bench.tables(engine, dumped=False)
    text = format_dump(bench.fabric, bench.switches, lids, made)
    if out is None:
        for line in text:
            click.echo(line)
    else:
        write_text(out, "".join(f"{line}\n" for line in text))


@record
class _Bench:
    """A fabric, and what to route it with."""

    fabric: Fabric
    switches: Switches
    engine: str  # the spec's
    options: Options

    @staticmethod
    def of(spec: str, options: Options) -> _Bench:
        from fabrictwin.base.errors import ConfigError
        from fabrictwin.base.textfile import name_of
        from fabrictwin.cluster.build_blueprint import build
        from fabrictwin.cluster.spec.spec import load_cluster
        from fabrictwin.routing.graph.switches import switch_graph
        from fabrictwin.twin.routed_twin import make_twin

        read = load_cluster(spec, sys.stdin)
        fabric = make_twin(read, build(read.cluster, spec=read)).fabric
        if fabric.technology != "infiniband":
            raise ConfigError(
                f"got a network of {fabric.technology}, expected infiniband: only its switches hold tables by LID",
                file=name_of(spec, sys.stdin),
            )
        named = read.cluster.routing.engine
        return _Bench(fabric, switch_graph(fabric), "auto" if named == "default" else named, options)

    def tables(self, source: str, *, dumped: bool) -> tuple[Lids, Tables]:
        """Tables by an engine (the spec's where none is named), or from a dump."""
        from fabrictwin.base.errors import ConfigError
        from fabrictwin.routing.check.dump import bind, read_dump
        from fabrictwin.routing.engines.registry import compute
        from fabrictwin.routing.engines.routing_options import Options
        from fabrictwin.routing.graph.switches import Lids, assign_lids

        if dumped:
            if self.options != Options():
                raise ConfigError("got options for an engine together with dumped tables, expected either")
            return bind(read_dump(source), self.fabric, self.switches)
        lid = assign_lids(self.fabric, lmc=self.options.lmc)
        lids = Lids(lid[self.switches.row_node], lid[self.switches.endpoint_node], self.options.lmc)
        return lids, compute(self.switches, lids, engine=source or self.engine, options=self.options)

    def either(self, source: str) -> tuple[Lids, Tables]:
        """Tables by an engine of that name, otherwise from a dump of that name."""
        from fabrictwin.base.errors import ConfigError, did_you_mean
        from fabrictwin.routing.check.dump import bind, read_dump
        from fabrictwin.routing.engines.registry import ENGINES

        if source in ENGINES:
            return self.tables(source, dumped=False)
        if not Path(source).exists():
            hint = did_you_mean(source, ENGINES)
            raise ConfigError(f"got {source!r}, expected an engine ({', '.join(ENGINES)}) or a file{hint}")
        return bind(read_dump(source), self.fabric, self.switches)

    def slowness(self) -> Any:
        """[E] the fastest adapter's rate over each link's."""
        import numpy as np

        fabric, switches = self.fabric, self.switches
        rates = fabric.port_rate_bps[switches.endpoint_port[switches.endpoint_adapter]]
        return np.maximum(rates.max(initial=1), 1) / fabric.port_rate_bps[switches.adjacent_port]

    def by_hosts(self) -> Any:
        """Adapters in the order of the cluster's hosts."""
        import numpy as np

        adapter = np.flatnonzero(self.switches.endpoint_adapter)
        return adapter[np.argsort(self.switches.endpoint_node[adapter], kind="stable")]


def _lines(verdict: Judgement, remark: str) -> list[str]:
    hops = ", ".join(f"{count} at {n}" for n, count in enumerate(verdict.hops) if count)
    rows = [
        (
            "tables",
            f"{verdict.engine}, {_many(verdict.lanes, 'virtual lane')}" + (f" ({remark})" if remark else ""),
        ),
        (
            "fabric",
            f"{_many(verdict.switches, 'switch')}, {_many(verdict.adapters, 'adapter')}, "
            f"{_many(verdict.endpoints - verdict.adapters, 'aggregation node')}",
        ),
        (
            "reach",
            f"all of {verdict.pairs:,} pairs"
            if not verdict.unreached
            else f"{verdict.unreached:,} of {verdict.pairs:,} pairs are not reached: {verdict.first_unreached}",
        ),
        ("hops", f"{verdict.mean_hops:.2f} on average; pairs of adapters: {hops}; {verdict.detours} not shortest"),
        ("deadlock", f"between adapters: {_deadlock(verdict.deadlock_adapters)}"),
        ("", f"with switches and aggregation nodes: {_deadlock(verdict.deadlock_all)}"),
        *([("", _needed(verdict.lanes_needed))] if not verdict.deadlock_all.free else []),
        ("all-to-all", _all_to_all(verdict.all_to_all)),
        ("shifts", _permutations(verdict.shifts)),
        ("random", _permutations(verdict.random)),
        ("verdict", "sound" if verdict.sound else "unsound"),
    ]
    return [f"{title:12}{text}" for title, text in rows]


def _beside(engine: str, others: tuple[Beside, ...]) -> list[str]:
    """Lines of what the twin's own engines would gain over one of OpenSM's."""
    lines: list[str] = []
    for other in others:
        text = other.refused or (
            f"all-to-all worst {other.all_to_all} ({_gained(other.gain_all_to_all)}), "
            f"shifts mean {other.shifts:.3f} ({_gained(other.gain_shifts)}), "
            f"random mean {other.random:.3f} ({_gained(other.gain_random)})"
            f"{'' if other.sound else ', unsound'}"
        )
        lines.append(f"{'' if lines else 'beside':12}{other.engine} instead of {engine}: {text}")
    return lines


def _gained(share: float) -> str:
    return "as much" if round(100 * share) == 0 else f"{abs(share):.0%} {'less' if share > 0 else 'more'}"


def _many(count: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{count} {what}{'' if count == 1 else plural}"


def _deadlock(found: Deadlock) -> str:
    if found.free:
        return "free"
    return f"can deadlock, in lane {found.lane}: " + "; ".join(found.cycle)


def _needed(lanes: int) -> str:
    if lanes < 0:
        return "more virtual lanes than there are would be needed to avoid that"
    return f"{lanes} virtual lanes, and service levels by path, would avoid that"


def _all_to_all(load: AllToAll) -> str:
    if not load.worst:
        return "no path between switches"
    return (
        f"worst {load.worst} paths ({load.relative:.2f} times an adapter's own link) on {load.worst_link}, "
        f"mean {load.mean:.0f}, {_many(load.idle_links, 'idle link')}"
    )


def _permutations(found: Permutations) -> str:
    of = f" of {found.possible}" if found.possible else ""
    return (
        f"congestion worst {found.worst:g}, worst on average {found.mean_worst:.2f}, mean {found.mean:.3f}; "
        f"{found.free} without any; {found.looked_at}{of} looked at"
    )


def _print_json(data: Any) -> None:
    import json

    click.echo(json.dumps(data, indent=2, ensure_ascii=False))
