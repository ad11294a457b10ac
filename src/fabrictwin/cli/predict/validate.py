"""`fabrictwin validate`: predictions beside published measurements."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import click

from fabrictwin.cli.options import DATA, JSON, WORKERS, Group, number, written
from fabrictwin.cli.options import fidelity as fidelity_option

ROWS_OF_JITTER = 0.8  # of the time that `validate jitter` takes; the causes of stragglers take the rest


@click.group(cls=Group, no_args_is_help=True)
def validate() -> None:
    """Predictions beside published measurements."""


@validate.command()
@fidelity_option("flow", "analytic", default="analytic", help="How closely to simulate.")
@click.option(
    "--match", default="", metavar="TEXT", help="Only rows whose set, row, model or hardware contains this."
)
@click.option(
    "--leave-out",
    default="",
    metavar="HARDWARE",
    help="Fit to all other hardware first (all: each in turn); takes minutes.",
)
@click.option("--fit", "refit", is_flag=True, help="Only fit the constants again, and print them; takes minutes.")
@click.option(
    "--collectives",
    type=click.Choice(["nccl", "simple"]),
    default="nccl",
    help="How jobs communicate: NCCL's choices, or rings over all adapters.",
)
@click.option("--rows", "every", is_flag=True, help="Print every row, not only the worst.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every row, group and assumption.")
@written("--out", help="Write the JSON to a file as well.")
@DATA
@WORKERS
def training(
    fidelity: str,
    match: str,
    leave_out: str,
    refit: bool,
    collectives: str,
    every: bool,
    as_json: bool,
    out: Path | None,
    data: Path | None,
    workers: int,
) -> None:
    """Every published training step with what the twin says of it, and the errors by group."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import write_text
    from fabrictwin.validation.published_data import find_data, read_data
    from fabrictwin.validation.training_cases import cases
    from fabrictwin.validation.training_fit import Fitter
    from fabrictwin.validation.training_fit_text import fit_json, fit_text, left_out_json, left_out_text
    from fabrictwin.validation.training_judge import Answers
    from fabrictwin.validation.training_text import as_json as to_json
    from fabrictwin.validation.training_text import as_text

    measurements = read_data(find_data(data))
    found = cases(measurements)
    with Progress() as progress:
        simple = collectives == "simple"
        answers = Answers(fidelity, simple=simple, stage=progress.stage, workers=workers)
        if refit or leave_out:
            if match:
                raise ConfigError("calibration looks at all rows, expected no --match beside it", key="--match")
            if refit and leave_out:
                raise ConfigError("expected one of --fit and --leave-out", key="--fit")
            fitter = Fitter(measurements, found, answers, progress.stage)
            if refit:
                constants, shares = fitter.fit_all(), fitter.shares()
                whole, text = fit_json(constants, shares), fit_text(constants, shares)
            else:
                left = fitter.leave_out(leave_out)
                rows = fitter.rows_of(left) if every or len(left) == 1 else []
                whole, text = left_out_json(left, fidelity), left_out_text(left, rows)
        else:
            found = [case for case in found if match.lower() in case.named.lower()]
            if not found:
                raise ConfigError(
                    f"got {match!r}, expected part of a set's, row's, model's or hardware's name", key="--match"
                )
            outcomes = answers.of(found)
            whole = to_json(measurements, outcomes, fidelity)
            text = as_text(measurements, outcomes, fidelity, every=every)
    if out is not None:
        write_text(out, whole)
    click.echo(whole if as_json else text, nl=False)


@validate.command()
@JSON
@DATA
@WORKERS
@written("--write", help="Write the page of these errors, docs/accuracy.md, to a file.")
@written("--write-ranges", help="Fit collectives and play servers too, and write the ranges that answers print.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(["step", "collective", "served"]),
    help="With --write-ranges: make only these, and keep the file's others; may come again.",
)
@click.option(
    "--by",
    multiple=True,
    metavar="WHAT",
    help="Leave out only this, such as hardware or series; may come again. What one row of a group says of the "
    "others rests on hardware, framework and 'hardware, release and model'.",
)
def accuracy(
    as_json: bool,
    data: Path | None,
    workers: int,
    write: Path | None,
    write_ranges: Path | None,
    only: tuple[str, ...],
    by: tuple[str, ...],
) -> None:
    """Errors of training steps that were held out with all that is like them; takes minutes."""
    from fabrictwin.base.errors import ConfigError, did_you_mean
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import read_text, write_text
    from fabrictwin.validation.held_out import (
        DIMENSIONS,
        SINGLE_KIND,
        freedom,
        held_out,
        in_sample,
        with_one_row,
    )
    from fabrictwin.validation.held_out_text import held_out_json, held_out_page, held_out_text
    from fabrictwin.validation.published_data import find_data, read_data
    from fabrictwin.validation.ranges.error_file import all_ranges
    from fabrictwin.validation.ranges.error_rows import KNOWN, step_spreads
    from fabrictwin.validation.training_cases import cases
    from fabrictwin.validation.training_judge import Answers

    for unknown in (one for one in by if one not in DIMENSIONS):
        hint = did_you_mean(unknown, DIMENSIONS)
        raise ConfigError(f"got {unknown!r}, expected one of {'; '.join(DIMENSIONS)}{hint}", key="--by")
    if by and write_ranges is not None and set(KNOWN) - set(by) and (not only or "step" in only):
        raise ConfigError(f"ranges of steps rest on {'; '.join(KNOWN)}, expected those or no --by", key="--by")
    if only and write_ranges is None:
        raise ConfigError("got kinds of ranges, expected --write-ranges beside it", key="--only")
    kept = read_text(write_ranges) if only and write_ranges is not None else ""
    measurements = read_data(find_data(data))
    rows = cases(measurements)
    with Progress() as progress:
        answers = Answers("analytic", stage=progress.stage, workers=workers)
        outcomes = answers.of(rows)
        found = [
            held_out(one, measurements, rows, answers, progress.stage) for one in DIMENSIONS if not by or one in by
        ]
        if set(KNOWN) <= {one.by for one in found}:
            single = next(one for one in found if one.by == SINGLE_KIND)
            found.append(with_one_row(single, answers, partial(step_spreads, measurements, [*found])))
        if write_ranges is not None:
            text = all_ranges(measurements, found, progress.stage, workers=workers, only=only, kept=kept)
            write_text(write_ranges, text)
    found.append(in_sample(outcomes))
    counted = freedom(measurements, outcomes)
    if write is not None:
        write_text(write, held_out_page(found, counted))
    click.echo(held_out_json(found, counted) if as_json else held_out_text(found, counted), nl=False)


@validate.command()
@click.option("--match", default="", metavar="TEXT", help="Only rows whose model, type or GPU contains this.")
@click.option("--rows", "every", is_flag=True, help="Print every row.")
@WORKERS
@JSON
@DATA
def serving(match: str, every: bool, workers: int, as_json: bool, data: Path | None) -> None:
    """Measured means of served models with the twin's beside them, and the errors by model and GPU."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.validation.published_data import find_data
    from fabrictwin.validation.served_models import TABLE, answers, read_measured, served_json, served_text

    measured = read_measured(find_data(data, TABLE))
    with Progress() as progress:
        found = answers(measured, progress.stage, match=match, workers=workers)
    if not found:
        raise ConfigError(f"got {match!r}, expected part of a model's, type's or GPU's name", key="--match")
    text = served_json(measured, found) if as_json else served_text(measured, found, every=every)
    click.echo(text, nl=False)


@validate.command()
@number("--samples", least=20, most=100000, default=1500, help="Steps of a replica to walk for each row.")
@click.option("--match", default="", metavar="TEXT", help="Only rows whose hardware or name contains this.")
@WORKERS
@JSON
@DATA
def jitter(samples: int, match: str, workers: int, as_json: bool, data: Path | None) -> None:
    """Published spreads of step times beside the twin's, noise set at one scale; stragglers by cause."""
    import json

    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress, part
    from fabrictwin.study.jitter import published_jitter as published
    from fabrictwin.study.jitter import stragglers
    from fabrictwin.validation.published_data import find_data, read_data

    measurements = read_data(find_data(data))
    statistics = stragglers.read_statistics(measurements.folder)
    with Progress() as progress:
        rows = progress.stage if match else part(progress.stage, 0.0, ROWS_OF_JITTER)
        found = published.beside(measurements, rows, samples=samples, match=match, workers=workers)
        causes = [] if match else stragglers.causes(statistics, part(progress.stage, ROWS_OF_JITTER, 1.0))
    if not found:
        raise ConfigError(f"got {match!r}, expected part of a row's hardware or name", key="--match")
    if as_json:
        whole = {
            "schema": 2,
            "steps": published.as_data(found),
            "stragglers": stragglers.as_data(statistics, causes),
        }
        click.echo(json.dumps(whole, indent=2))
    else:
        click.echo(published.as_text(found), nl=False)
        if causes:
            click.echo("\n" + stragglers.as_text(statistics, causes), nl=False)


@validate.command()
@fidelity_option("flow", "analytic", default="analytic", help="How closely to simulate.")
@click.option("--match", default="", metavar="TEXT", help="Only series whose name or hardware contains this.")
@click.option(
    "--leave-out", default="", metavar="HARDWARE", help="Fit to all other hardware first; takes minutes."
)
@click.option("--fit", "refit", is_flag=True, help="Only fit the costs again, and print them; takes minutes.")
@click.option("--turned-off", "off", is_flag=True, help="What turning things off costs instead.")
@click.option("--rows", "every", is_flag=True, help="Print every size of every series.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every row and assumption.")
@WORKERS
@DATA
def collectives(
    fidelity: Literal["flow", "analytic"],
    match: str,
    leave_out: str,
    refit: bool,
    off: bool,
    every: bool,
    as_json: bool,
    workers: int,
    data: Path | None,
) -> None:
    """Every measured series of nccl-tests with the twin's time beside it, and the errors by regime."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.validation.collective_series import TABLE, judge, read_published
    from fabrictwin.validation.collectives_fit import as_text as costs_text
    from fabrictwin.validation.collectives_fit import fit, fit_without
    from fabrictwin.validation.collectives_text import as_json as to_json
    from fabrictwin.validation.collectives_text import as_text
    from fabrictwin.validation.published_data import find_data

    if off:
        _turned_off(find_data(data, TABLE), fidelity, match, workers, as_json)
        return
    published = read_published(find_data(data, TABLE))
    names = [n for n, s in published.series.items() if match.lower() in f"{n} {s.hardware}".lower()]
    if not names:
        raise ConfigError(f"got {match!r}, expected part of a series' or hardware's name", key="--match")
    with Progress() as progress:
        if refit:
            click.echo(costs_text(fit(published, stage=progress.stage)), nl=False)
            return
        fitted = fit_without(published, leave_out, stage=progress.stage) if leave_out else None
        outcomes = judge(
            published, names=names, fidelity=fidelity, fitted=fitted, stage=progress.stage, workers=workers
        )
    if as_json:
        click.echo(to_json(outcomes, fidelity, leave_out), nl=False)
    else:
        click.echo(as_text(outcomes, fidelity, leave_out, every=every), nl=False)


def _turned_off(
    data: Path, fidelity: Literal["flow", "analytic"], match: str, workers: int, as_json: bool
) -> None:
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.validation import turned_off

    tests = [t for t in turned_off.read_tests(data) if match.lower() in f"{t.what} {t.machine}".lower()]
    if not tests:
        raise ConfigError(f"got {match!r}, expected part of what is turned off or of a machine", key="--match")
    with Progress() as progress:
        found = turned_off.answers(tests, fidelity=fidelity, stage=progress.stage, workers=workers)
    click.echo((turned_off.as_json if as_json else turned_off.as_text)(found, fidelity), nl=False)


@validate.command()
@click.option("--leave-out", is_flag=True, help="Fit to all but one publication, each in turn; takes a while.")
@click.option("--fit", "refit", is_flag=True, help="Only fit the costs again, and print them.")
@click.option("--rows", "every", is_flag=True, help="Print every row, not only the worst.")
@JSON
@DATA
def sockets(leave_out: bool, refit: bool, every: bool, as_json: bool, data: Path | None) -> None:
    """Published bandwidths and latencies of TCP sockets beside what the stack's costs make of them."""
    import json
    from dataclasses import asdict

    from fabrictwin import catalog
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.engines.sockets.stack import Costs
    from fabrictwin.validation.published_data import find_data
    from fabrictwin.validation.sockets import sockets_fit
    from fabrictwin.validation.sockets.socket_rows import TABLE, read_sockets
    from fabrictwin.validation.sockets.sockets_text import costs_text, sockets_data, sockets_text

    if refit and leave_out:
        raise ConfigError("expected one of --fit and --leave-out", key="--fit")
    points, texts = read_sockets(find_data(data, TABLE))
    if refit:
        costs = sockets_fit.fit(points)
        click.echo(json.dumps(asdict(costs), indent=2) + "\n" if as_json else costs_text(costs), nl=False)
        return
    left: list[sockets_fit.LeftOut] = []
    if leave_out:
        with Progress() as progress:
            left = sockets_fit.leave_out(points, progress.stage)
    whole = sockets_data(points, texts, Costs.of(catalog.host_stack("linux")), left)
    click.echo(json.dumps(whole, indent=2) + "\n" if as_json else sockets_text(whole, every=every), nl=False)
