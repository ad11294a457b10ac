"""A spec's constants fitted to one's own measurements: what changed, on what it rests, what error is left.

Adapters: what is added to a message's way, a factor on rates of messages (`calibration.adapters`). Collectives:
what is added to a launch, a factor on hops, a factor on the rate, each where rows show it (below
64 KiB, between, from 64 MiB). Steps: the share of its kernels' throughput that a framework's steps reach.
Products: a factor on the catalog's throughput, by type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from fabrictwin.base.arrays import F64
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.textfile import write_text
from fabrictwin.base.units import PS_PER_S, PS_PER_US
from fabrictwin.calibration.adapters import fit_adapters
from fabrictwin.calibration.fitting import SINGLE, Fitted, Prior, fit
from fabrictwin.calibration.inputs import CollectiveRows, Inputs, read_inputs
from fabrictwin.catalog.error_ranges import REGIMES, Spread, error_ranges, regime_of, step_spread
from fabrictwin.catalog.step_shares import step_shares
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.calibration_file import (
    AdapterCorrections,
    CalibrationFile,
    CollectiveCorrections,
    job_of,
)
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.nccl.settings.spec_section import settings_here
from fabrictwin.runs import execute
from fabrictwin.tools.nccl_tests import perf
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.workload.layers.number_formats import Precision
from fabrictwin.workload.layers.roofline import Roofline
from fabrictwin.workload.operators.measurements import Measured

LAUNCH = Prior("collectives.launch_us", 0.0, 15.0, factor=False)
HOP = Prior("collectives.hop", 1.0, 0.5)
RATE = Prior("collectives.rate", 1.0, 0.15)
SHOWN = dict(zip((name for name, *_ in REGIMES), (LAUNCH, HOP, RATE), strict=True))
UNCORRECTED: dict[str, Any] = {"launch_us": 0.0, "hop": 1.0, "rate": 1.0}
PRODUCTS = 0.2  # the prior's width of a type's factor
LARGE = 512  # sides of products that the catalog's throughput is about
LEAST_SHARE = 0.05
LEAST_WIDTH = 1e-3  # of a prior and of a row, where no spread was seen
SHARE, OWN_SHARE = "compute_share", "same_job.compute_share"


@record
class Calibrated:
    """Fitted constants of a spec."""

    name: str
    fitted: tuple[Fitted, ...]
    job: str = ""  # that a step was measured of (`job_of`)

    @property
    def data(self) -> dict[str, Any]:
        """Return the calibration file as plain data."""
        found: dict[str, Any] = {"schema": 1}
        for one in self.fitted:
            if one.applied:
                section, _, key = one.name.partition(".")
                value = float(f"{one.after:.4g}")
                if key:
                    found.setdefault(section, {})[key] = value
                else:
                    found[section] = value
        if "same_job" in found:
            found["same_job"]["job"] = self.job
        rests = dict.fromkeys(one.source for one in self.fitted if one.applied)
        return {**found, "rests_on": list(rests)}

    @property
    def changes(self) -> bool:
        """Return true if any constant changed."""
        return any(one.applied for one in self.fitted)

    def json(self) -> str:
        """Return constants, priors and errors as JSON."""
        rows = [
            {
                "constant": one.name,
                "before": one.before,
                "after": float(f"{one.after:.4g}"),
                "applied": one.applied,
                "prior": one.prior,
                "points": one.points,
                "rests_on": one.source,
                "median_error_before": one.errors[0],
                "median_error_after": one.errors[1],
                "median_error_left_out": one.errors[2],
            }
            for one in self.fitted
        ]
        return json.dumps({"schema": 1, "name": self.name, "constants": rows, "calibration": self.data}, indent=2)

    def save(self, path: str | Path) -> Path:
        """Write the calibration file and return its path. Raises ConfigError."""
        if not self.changes:
            raise ConfigError("nothing was changed: there is no calibration to write", file=Path(path))
        write_text(Path(path), yaml.safe_dump(self.data, sort_keys=False))
        return Path(path)

    def __str__(self) -> str:
        lines = [f"calibration of {self.name}"]
        for source in dict.fromkeys(one.source for one in self.fitted):
            own = [one for one in self.fitted if one.source == source]
            before, after, alone = own[0].errors
            lines.append(f"  {source}: {own[0].points} {'point' if own[0].points == 1 else 'points'}")
            for one in own:
                says = f"{one.before:.4g} -> {one.after:.4g}" if one.applied else f"{one.before:.4g}, left"
                lines.append(f"    {one.name:<22} {says:<18} ({one.prior})")
            if own[0].applied:
                left = "" if alone is None else f", {alone:.1%} for a point that is left out"
                lines.append(f"    median error           {before:.1%} -> {after:.1%}{left}")
            else:
                single = own[0].points == 1
                why = f"one point, applied beyond {SINGLE:.0%} alone" if single else "no fit leaves less"
                lines.append(f"    median error           {before:.1%}: {why}")
        return "\n".join(lines) + "\n"


def calibrate(
    spec: Spec, files: Iterable[str | Path] = (), *, step_times: Sequence[float] = (), stage: Stage = silent
) -> Calibrated:
    """Fit a spec's constants to files (see `calibration.inputs`) and step times in seconds.

    The spec is taken without a calibration that it names. Raises ConfigError for a file that cannot be read, or
    that does not fit the spec.
    """
    spec = spec.model_copy(update={"calibration": None, "workload": _uncalibrated(spec)})
    found = read_inputs([Path(one) for one in files])
    if not (found.collectives or found.products or found.steps_s or found.perftest or step_times):
        raise ConfigError("got no measurement, expected files or a step time")
    fitted = fit_adapters(spec, found.perftest, stage) if found.perftest else []
    spec = _with_adapters(spec, fitted)  # what collectives and steps take is found beside that
    if found.collectives:
        fitted += _collectives(spec, found, stage)
    for one in found.products:
        fitted += _products(spec, one)
    # a share is what is left once products are corrected
    known = {one.name[9:]: one.after for one in fitted if one.applied and one.name.startswith("products.")}
    times = (*step_times, *found.steps_s)
    if times:
        stage("the step at several shares")
        fitted += _step(_with_products(spec, known), times)
    return Calibrated(spec.name, tuple(fitted), job_of(spec.workload["training"]) if times else "")


def _with_adapters(spec: Spec, fitted: Sequence[Fitted]) -> Spec:
    known = {one.name.partition(".")[2]: one.after for one in fitted if one.applied}
    if not known:
        return spec
    return spec.model_copy(update={"calibration": CalibrationFile(adapters=AdapterCorrections(**known))})


def _uncalibrated(spec: Spec) -> dict[str, Any]:
    """Return the workload without what its calibration laid beneath it."""
    workload = dict(spec.workload)
    if spec.calibration is not None and isinstance(workload.get("training"), dict):
        training = dict(workload["training"])
        own = spec.calibration.same_job
        same = own is not None and own.job == job_of(training)
        laid = {"compute_share": own.compute_share if own and same else spec.calibration.compute_share}
        laid["product_share"] = dict(spec.calibration.products).get(training.get("precision", "bf16"))
        workload["training"] = {k: v for k, v in training.items() if k not in laid or v != laid[k]}
    return workload


def _with_products(spec: Spec, known: dict[str, float]) -> Spec:
    training = spec.workload.get("training")
    if not isinstance(training, dict) or training.get("precision", "bf16") not in known:
        return spec
    factor = known[training.get("precision", "bf16")]
    return spec.model_copy(update={"workload": {"training": {**training, "product_share": factor}}})


# --- collectives -------------------------------------------------------------------------------------------


def _collectives(spec: Spec, found: Inputs, stage: Stage) -> list[Fitted]:
    """Fit corrections of step costs to tables of nccl-tests."""
    runs = [(_run(spec, table), table) for table in found.collectives]
    measured = np.log([time for _, table in runs for _, time in table.rows])
    regimes = [regime_of(size) for _, table in runs for size, _ in table.rows]
    priors = [SHOWN[name] for name in SHOWN if name in regimes][: len(measured)]

    def logs(at: F64) -> F64:
        stage("collectives with other costs")
        values = {
            one.name.partition(".")[2]: one.at(where) for one, where in zip(priors, at.tolist(), strict=True)
        }
        corrections = CollectiveCorrections.model_construct(None, **{**UNCORRECTED, **values})
        times: list[int] = []
        for run, _ in runs:
            run.corrections = corrections
            times += run.time("analytic")
        return np.asarray(np.log(np.array(times) / PS_PER_US) - measured)

    sizes = sum(len(table.rows) for _, table in runs)
    names = ", ".join(dict.fromkeys(f"{table.program} of {run.ranks} ranks" for run, table in runs))
    return fit(logs, priors, sizes, f"nccl-tests: {names}")


def _run(spec: Spec, table: CollectiveRows) -> perf.Run:
    """Return the table's test on the spec's cluster, its rows as plans. Raises ConfigError."""
    if table.program not in perf.TESTS:
        known = ", ".join(perf.TESTS)
        raise ConfigError(f"got a table of {table.program or 'an unnamed test'}, expected one of {known}")
    twin = make_twin(spec, build(spec.cluster, spec=spec))
    ranks = table.ranks or len(twin.fabric.gpu_node)
    hosts = max(1, table.hosts)
    most = len(twin.fabric.gpu_node)
    if ranks > most or ranks % hosts:
        message = f"got a table of {ranks} ranks on {hosts} hosts, expected as many on each, at most {most}"
        raise ConfigError(message)
    nodes = perf.ranks_of(twin, gpus_per_process=ranks // hosts, hosts=hosts, processes=hosts)
    settings = settings_here(spec, {})
    first, *_ = table.rows
    options = perf.Options(perf.TESTS[table.program], min_bytes=first[0], max_bytes=first[0], check=0)
    run = perf.prepare(twin, options, settings=settings, rank_node=nodes)
    run.plans = [run.planned(size) for size, _ in table.rows]
    if any(plan.task is None for plan in run.plans):
        raise ConfigError(
            f"got rows of {table.program} that are smaller than one element of each of {ranks} ranks"
        )
    return run


# --- steps and products ------------------------------------------------------------------------------------


def _step(spec: Spec, times_s: Sequence[float]) -> list[Fitted]:
    """Fit the shares of their kernels' throughput that steps reach. Raises ConfigError."""
    measured = median(times_s)
    if not 0 < measured < math.inf:
        raise ConfigError(f"got a step of {measured} s, expected a time above 0", key="--step-time")
    if not isinstance(spec.workload.get("training"), dict):
        raise spec.error("workload.training", "a step's time calibrates a training job, and the spec has none")
    if "compute_share" in spec.workload["training"]:
        message = "got a share, which goes before any calibration: take it out to calibrate it"
        raise spec.error("workload.training.compute_share", message)

    twin = make_twin(spec, build(spec.cluster, spec=spec))
    gpu, software = twin.fabric.templates[0].gpu_type, spec.workload["training"].get("software")
    shares = step_shares()
    spread = step_spread(error_ranges("step").spread, gpu=gpu in shares.gpus, software=software in shares.software)

    def step_s(share: float) -> float:
        training = {**spec.workload["training"], "compute_share": share}
        asked = spec.model_copy(update={"workload": {"training": training}})
        return execute.predict(execute.with_overrides(asked, fidelity="analytic")).trace.end_ps / PS_PER_S

    source = f"a step of {measured:.4g} s" + (f", the median of {len(times_s)}" if len(times_s) > 1 else "")
    return fit_shares(step_s, shares.of(gpu, software), measured, source, spread)


def fit_shares(
    step_s: Callable[[float], float], usual: float, measured_s: float, source: str, spread: Spread
) -> list[Fitted]:
    """Fit shares of kernels' throughput that steps reach to one time in seconds: of this job and of others.

    `step_s` gives the step in seconds for a share, `usual` is the share without the time. How far the time moves
    either is the mean of what it leaves likely (the best linear predictor of nested random effects): of others it
    shows what the group has in common, beside what is the job's and the row's own; of the job all but the row's.
    """
    of_group = (spread.group, math.hypot(spread.job, spread.row))
    of_job = (math.hypot(spread.group, spread.job), spread.row)

    def within(share: float) -> float:
        return float(np.clip(share, LEAST_SHARE, 1.0))

    def fitted(name: str, widths: tuple[float, float], of: str) -> Fitted:
        prior = Prior(name, usual, max(widths[0], LEAST_WIDTH))

        def logs(at: F64) -> F64:
            return np.array([math.log(step_s(within(prior.at(float(at[0])))) / measured_s)])

        (one,) = fit(logs, [prior], 1, f"{source}, {of}", noise=max(widths[1], LEAST_WIDTH))
        return replace(one, after=within(one.after))

    return [
        fitted(SHARE, of_group, "for other jobs"),
        fitted(OWN_SHARE, of_job, "for this job on any number of GPUs"),
    ]


def _products(spec: Spec, measured: Measured) -> list[Fitted]:
    """Fit a factor on the throughput of one type's products. Raises ConfigError."""
    twin = make_twin(spec, build(spec.cluster, spec=spec))
    gpu = twin.fabric.templates[0].gpu_type
    types: dict[str, Precision] = {"bf16": "bf16", "fp8": "fp8", "fp4": "fp4"}
    if measured.type not in types:
        return []
    large = (measured.shapes >= LARGE).all(axis=1)
    shapes, times = measured.shapes[large].astype(int), measured.times_us[large]
    if not len(shapes):
        return []
    roof = Roofline(gpu, types[measured.type])
    ours = np.array([(roof.linear(*shape) + roof.cast(shape[0] * shape[2])).ps for shape in shapes.tolist()])
    start = np.log(ours / PS_PER_US) - np.log(times)
    prior = Prior(f"products.{measured.type}", 1.0, PRODUCTS)

    def logs(at: F64) -> F64:
        return np.asarray(start - math.log(prior.at(float(at[0]))))

    return fit(
        logs, [prior], len(shapes), f"{len(shapes)} products in {measured.type} on {gpu}, sides from {LARGE}"
    )
