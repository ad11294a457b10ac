"""The twin's prediction of every published row, and how far it is off.

Rows that a constant was fitted to (`calibrated_from` in training.yaml) are told apart and count in no error.
What is left where a hardware's rows calibrate nothing is `training_fit`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from statistics import median
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.report.summary import step_figures
from fabrictwin.runs import execute
from fabrictwin.runs.workers import in_order
from fabrictwin.validation.training_cases import Case
from fabrictwin.workload.job.nccl_communications import KeptLibraries

QUANTITIES = {
    "step_time_s": "s",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "model_tflops_per_gpu": "model TFLOP/s/GPU",
    "hardware_tflops_per_gpu": "hardware TFLOP/s/GPU",
}


@record
class Outcome:
    """A row and what became of it: a prediction, or why there is none."""

    case: Case
    predicted: float | None = None
    step_time_s: float | None = None
    refused: str = ""  # the twin's own error about the row's layout

    @property
    def error(self) -> float | None:
        """Predicted over published throughput, less 1; of a step time the inverse. Above 0 is too fast."""
        if self.predicted is None:
            return None
        row = self.case.row
        slower = row.quantity == "step_time_s"
        return (row.value / self.predicted if slower else self.predicted / row.value) - 1

    @property
    def status(self) -> str:
        if self.predicted is not None:
            return "calibrated from" if self.case.calibrates else "predicted"
        if self.case.unknown:
            return "settings not known"
        return "not modelled yet" if self.case.missing else "refused"

    @property
    def counts(self) -> bool:
        """Return true if it is a prediction."""
        return self.predicted is not None and not self.case.calibrates

    @property
    def why(self) -> str:
        return self.case.unknown or ", ".join(self.case.missing) or self.refused


# rows come again with other constants, on the same ranks of the same clusters; each process keeps its own
_LIBRARIES = KeptLibraries(256)
FEW = 8  # specs that this process predicts itself: others take seconds to start and keep nothing for the next ones


def _figures(spec: Spec) -> dict[str, float] | str:
    try:
        found = step_figures(execute.predict(spec, make_library=_LIBRARIES))
    except ConfigError as error:
        return str(error)
    return {key: found[key] for key in QUANTITIES}


class Answers:
    """Predictions of the twin for specs, each asked once; with simple collectives where these are asked for."""

    def __init__(
        self, fidelity: str, *, simple: bool = False, stage: Stage = silent, workers: int | str | None = 1
    ) -> None:
        self.fidelity, self.simple, self.stage, self.workers = fidelity, simple, stage, workers
        self._known: dict[str, dict[str, float] | str] = {}

    def of(self, found: Iterable[Case]) -> list[Outcome]:
        """An outcome for every case. Rows of one spec (a layout measured with several releases) are run once."""
        keyed = [(case, *self._keyed(case)) for case in found]
        missing = {key: spec for _, key, spec in keyed if spec is not None and key not in self._known}
        names = [f"{i + 1} of {len(missing)} layouts: {spec.name}" for i, spec in enumerate(missing.values())]
        workers = 1 if len(missing) < FEW else self.workers
        answers = in_order(_figures, [*missing.values()], workers, self.stage, names)
        self._known |= zip(missing, answers, strict=True)
        return [self._outcome(case, key) for case, key, _ in keyed]

    def _keyed(self, case: Case) -> tuple[str, Spec | None]:
        if case.spec is None:
            return "", None
        spec = execute.with_overrides(case.spec, fidelity=self.fidelity)
        if self.simple:
            spec = spec.model_copy(update={"run": spec.run.model_copy(update={"collectives": "simple"})})
        return spec.model_copy(update={"name": ""}).model_dump_json(by_alias=True), spec

    def _outcome(self, case: Case, key: str) -> Outcome:
        if case.spec is None:
            return Outcome(case)
        answer = self._known[key]
        if isinstance(answer, str):
            return Outcome(case, refused=answer)
        return Outcome(case, answer[case.row.quantity], answer["step_time_s"])


def judge(found: Iterable[Case], *, fidelity: str, stage: Stage, workers: int | str | None = 1) -> list[Outcome]:
    """An outcome for every case."""
    return Answers(fidelity, stage=stage, workers=workers).of(found)


# --- groups ------------------------------------------------------------------------------------------------


@record
class Group:
    """Errors of rows that have something in common; shares of 1."""

    by: str  # hardware, framework, parallelism, all
    name: str
    rows: int
    median_absolute: float
    ninth_decile: float  # nine in ten rows are within
    median_signed: float
    worst: float


def _group(by: str, name: str, errors: list[float]) -> Group:
    absolute = sorted(abs(e) for e in errors)
    ninth = absolute[max(0, -(-9 * len(absolute) // 10) - 1)]
    return Group(by, name, len(errors), median(absolute), ninth, median(errors), max(errors, key=abs))


def groups(outcomes: Iterable[Outcome]) -> list[Group]:
    """All rows, then by hardware, framework, parallelism and precision."""
    done = [(o, o.error) for o in outcomes if o.counts and o.error is not None]
    if not done:
        return []
    result = [_group("all", "all rows", [e for _, e in done])]
    for by in ("hardware", "framework", "parallelism", "precision"):
        named = [(_name(o, by), e) for o, e in done]
        for name in dict.fromkeys(name for name, _ in named):
            result.append(_group(by, name, [e for other, e in named if other == name]))
    return result


def _name(outcome: Outcome, by: str) -> str:
    return str(getattr(outcome.case.row if by == "precision" else outcome.case, by))


@record
class Pair:
    """Two rows that differ in GPUs (and in the batch that goes with them) alone."""

    fewer: Outcome
    more: Outcome
    published: float  # throughput of a GPU among more, over that among fewer
    predicted: float

    @property
    def agrees(self) -> bool:
        return (self.published >= 1) == (self.predicted >= 1)


def _per_gpu(outcome: Outcome, value: float) -> float:
    """Throughput of a GPU, up to a factor that is the same for rows of one model."""
    row = outcome.case.row
    return row.global_batch / (value * row.gpus) if row.quantity == "step_time_s" else value


def _settings(outcome: Outcome) -> str:
    """Settings of a row, but for how many replicas and sequences."""
    spec = outcome.case.spec
    training = dict((spec.workload or {}).get("training", {})) if spec else {}
    training.pop("global_batch", None)
    training["parallel"] = {k: v for k, v in training.get("parallel", {}).items() if k != "dp"}
    return json.dumps(training, sort_keys=True)


def pairs(outcomes: Iterable[Outcome]) -> list[Pair]:
    """Every pair of predicted rows whose layout and settings are the same but for the number of GPUs."""
    ignored = {"row", "gpus", "global_batch", "fsdp", "value", "memory_gib"}
    alike: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.predicted is not None:
            row = outcome.case.row
            key = tuple(sorted((k, v) for k, v in row.model_dump().items() if k not in ignored and v is not None))
            technique = row.row.split(" ", 1)[-1] if row.set == "torchtitan" else ""
            alike.setdefault((key, technique, _settings(outcome)), []).append(outcome)
    found = []
    for members in alike.values():
        members = sorted(members, key=lambda o: o.case.row.gpus)
        for i, fewer in enumerate(members):
            for more in members[i + 1 :]:
                if fewer.case.row.gpus == more.case.row.gpus:
                    continue
                published = _per_gpu(more, more.case.row.value) / _per_gpu(fewer, fewer.case.row.value)
                assert more.predicted is not None
                assert fewer.predicted is not None
                predicted = _per_gpu(more, more.predicted) / _per_gpu(fewer, fewer.predicted)
                found.append(Pair(fewer, more, published, predicted))
    return found
