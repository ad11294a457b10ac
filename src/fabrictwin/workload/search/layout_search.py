"""The search for a layout: every way to divide a job that its GPUs hold, by its time in closed form.

Searched are tensor, pipeline, context and expert parallel sizes, virtual stages, the micro-batch, sequence
parallelism and recomputation; the model, the global batch, precision, sharding and overlap stay as the spec has
them. Of recomputation the least that fits is taken, because more only costs time. What a layout may not be is the
spec's own rules (`checks`); tensor parallelism stays inside a host.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.workload.job.job import Job, check
from fabrictwin.workload.job.nccl_communications import library_of
from fabrictwin.workload.job.rank_layout import Layout, split_layers
from fabrictwin.workload.job.training_checks import Wrong, check_layout, check_switches
from fabrictwin.workload.job.workload_section import Parallel, Training, Workload
from fabrictwin.workload.memory.gpu_memory import Known, Memory, fullest, memory
from fabrictwin.workload.memory.memory_inputs import MemoryInputs, Recompute, memory_inputs_of
from fabrictwin.workload.model.model_sizes import Model
from fabrictwin.workload.search.lower_bound import LowerBounds
from fabrictwin.workload.step.closed_form import ClosedForm, Estimate
from fabrictwin.workload.step.communication_times import CommunicationTimes

LARGEST_MICRO_BATCH = 8
HEADROOM = 0.05  # of a GPU's memory, for what `memory` leaves out: fragmentation, workspaces
LARGEST_CONTEXT = 16
COLLECTED = 1_000_000  # objects made between two searches for cyclic garbage
_RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "operations", "full")  # from what costs least time
_WITH_CONDITIONS = ("operations",)  # the rules forbid it with some layouts


@record
class Candidate:
    """A layout that fits: `section` is `workload.training` with it."""

    section: dict[str, Any]
    job: Job
    memory: Memory
    estimate: Estimate


@record
class _Bounded:
    """A layout that fits and takes at least so long (`LowerBounds`)."""

    ps: float
    section: dict[str, Any]
    job: Job


@record
class _Held:
    """A layout that the rules allow; nothing where no recomputation makes it fit."""

    section: dict[str, Any] | None
    job: Job | None


@record
class _Division:
    """Division of model and replicas, with what is the same for all micro-batches, found once."""

    parallel: Parallel
    vocab: int  # padded
    layer_counts: tuple[int, ...]
    # data-parallel ranks of a unit by what the rules look at, None where they forbid it
    ruled: dict[tuple[object, ...], int | None] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)  # by data-parallel ranks of a unit
    memory: Known = field(default_factory=Known)
    inputs: list[MemoryInputs] = field(default_factory=list)  # of memory, of one layout
    # by sequence parallelism and recomputation, the least micro-batch that does not fit: no larger one does
    beyond: dict[tuple[bool, Recompute], int] = field(default_factory=dict)


@record
class Found:
    """The result of a search: the fastest layouts that fit, and how many there were."""

    candidates: tuple[Candidate, ...]
    considered: int
    too_large: int  # do not fit in a GPU's memory even with full recomputation


class _Rules(Wrong):
    """The spec's rules, asked thousands of times: errors without places."""

    def __call__(self, where: str, message: str) -> ConfigError:
        return ConfigError(message, key=where)


class _ByText:
    """Orders sections by their text, which is made only where something else is equal."""

    __slots__ = ("section",)

    def __init__(self, section: dict[str, Any]) -> None:
        self.section = section

    def __lt__(self, other: _ByText) -> bool:
        return repr(self.section) < repr(other.section)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Look for cyclic garbage seldom: a search makes many objects that stay, and few that refer to themselves.

    What is new as it begins and as it ends grows old unseen: only collections of everything look at it.
    """
    before = gc.get_threshold()
    _grow_old()
    gc.set_threshold(max(before[0], COLLECTED), *before[1:])
    try:
        yield
    finally:
        _grow_old()
        gc.set_threshold(*before)


def _grow_old() -> None:
    """Put all objects into the oldest generation, but where some are frozen, which would be no more."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def kept_of(section: dict[str, Any]) -> dict[str, Any]:
    """Return what layouts keep of the section that is given: not the micro-batches, which follow from each."""
    return {key: value for key, value in section.items() if key != "micro_batches"}


class Search:
    """Layouts of a spec's job on its cluster."""

    def __init__(self, spec: Spec, blueprint: Blueprint, fabric: Fabric, *, headroom: float = HEADROOM) -> None:
        self.headroom = headroom
        self.spec = spec
        self.given = spec.validate_section("workload", Workload).training
        self.raw: dict[str, Any] = spec.to_dict()["workload"]["training"]
        self.model: Model = Wrong(spec).read_model(self.given)
        self.base, rank_node = self._neutral(spec, blueprint, fabric)
        self.gpus = self.base.layout.ranks
        self.global_batch = self._batch()
        self.times = CommunicationTimes(fabric, rank_node, library_of(spec, blueprint, fabric, rank_node))
        self.per_host = int(np.bincount(self.base.placement.host_of_rank).max())
        self.rules = _Rules(spec)
        self._kept = kept_of(self.raw)
        self._kinds: dict[tuple[bool, bool, bool], Training] = {}
        self._memory = Known()
        self._divided: tuple[Any, _Division | None] = None, None
        self._recomputes = [r for r in _RECOMPUTE if r != "selective" or self.given.attention == "materialised"]
        self.room = (1 - headroom) * catalog.gpu(self.base.hardware.gpu).memory.value

    def _neutral(self, spec: Spec, blueprint: Blueprint, fabric: Fabric) -> tuple[Job, npt.NDArray[np.int32]]:
        """The job on all its GPUs with nothing divided but the batch."""
        par = self.given.parallel
        ranks: dict[str, int] = {} if par.dp is None else {"dp": par.tp * par.pp * par.cp * par.dp}
        kept: dict[str, Any] = {
            key: self.raw[key] for key in ("model", "sequence", "precision") if key in self.raw
        }
        section = {**kept, "parallel": ranks, "micro_batches": 1}
        return check(spec.model_copy(update={"workload": {"training": section}}), blueprint, fabric)

    def _batch(self) -> int:
        given, par = self.given, self.given.parallel
        if given.global_batch is not None:
            return given.global_batch
        per_replica = par.tp * par.pp * par.cp
        if self.gpus % per_replica:
            raise self.spec.error(
                "workload.training.micro_batches",
                f"got micro-batches of a layout that does not divide {self.gpus} GPUs, expected global_batch",
            )
        return (given.micro_batches or 1) * given.micro_batch_size * (self.gpus // per_replica)

    # --- what there is to try

    def _sizes(self) -> Iterator[tuple[int, int, int, int]]:
        """(tp, cp, pp, dp)."""
        model, sequence = self.model, self.given.sequence
        for tp in divisors(min(self.per_host, self.gpus)):
            if self.gpus % tp or model.heads % tp or model.kv_heads % tp:
                continue
            cp = 1
            while cp <= LARGEST_CONTEXT and self.gpus % (tp * cp) == 0 and (cp == 1 or sequence % (2 * cp) == 0):
                for pp in divisors(self.gpus // (tp * cp)):
                    if pp <= model.layers + 2:
                        yield tp, cp, pp, self.gpus // (tp * cp * pp)
                cp *= 2

    def _parallel(self) -> Iterator[dict[str, Any]]:
        """`parallel` sections whose layers divide."""
        par, layers = self.given.parallel, self.model.layers
        kept = {key: getattr(par, key) for key in ("context", "schedule")}
        experts = self.model.experts
        for tp, cp, pp, dp in self._sizes():
            chunks = [1] if pp == 1 or par.schedule != "1f1b" else range(1, layers // pp + 2)
            ends = par.ends_as_layers
            if split_layers(layers, pp, ends_as_layers=ends, given=None) is None:
                ends = not ends
            for vp in chunks:
                if split_layers(layers, pp * vp, ends_as_layers=ends, given=None) is None:
                    continue
                for ep in divisors(experts.count) if experts else [1]:
                    if ep > dp * cp * tp:
                        break
                    yield {
                        **kept, "tp": tp, "cp": cp, "pp": pp, "dp": dp, "vp": vp, "ep": ep, "ends_as_layers": ends,
                        **({"expert_tp": 1} if experts and (par.expert_tp == 1 or ep > 1) else {}),
                    }  # fmt: skip

    def _sections(self) -> Iterator[dict[str, Any]]:
        """Training sections to try, but for recomputation."""
        for parallel in self._parallel():
            tp, dp = parallel["tp"], parallel["dp"]
            if self.global_batch % dp:
                continue
            share = self.global_batch // dp
            divided = [False] if tp == 1 else [True] if self.given.sequence_parallel else [True, False]
            for sequence_parallel in divided:
                micro_batch = 1
                while micro_batch <= min(LARGEST_MICRO_BATCH, share):
                    whole = share % micro_batch == 0
                    if whole and (parallel["vp"] == 1 or share // micro_batch % parallel["pp"] == 0):
                        yield self._section(parallel, micro_batch, sequence_parallel)
                    micro_batch *= 2

    def _section(self, parallel: dict[str, Any], micro_batch: int, sequence_parallel: bool) -> dict[str, Any]:
        section = {
            **self._kept,
            "parallel": parallel,
            "micro_batch_size": micro_batch,
            "global_batch": self.global_batch,
            "sequence_parallel": sequence_parallel,
        }
        overlap = section.get("overlap")
        if isinstance(overlap, dict) and "tensor" in overlap:
            tensor = overlap["tensor"]
            if parallel["tp"] == 1:
                tensor = "none"
            elif tensor == "full" and not sequence_parallel:
                tensor = "gradients"
            section["overlap"] = {**overlap, "tensor": tensor}
        return section

    # --- what becomes of it

    def _division(self, section: dict[str, Any]) -> _Division:
        """The division of a section, made once for all sections that follow each other with it."""
        given, known = self._divided
        if known is None or given is not section["parallel"]:
            par = Parallel.model_construct(**section["parallel"])
            counts = split_layers(
                self.model.layers, par.pp * par.vp, ends_as_layers=par.ends_as_layers, given=par.layers
            )
            unit = self.given.pad_vocabulary * par.tp
            padded = -(-self.model.vocab // unit) * unit
            known = _Division(par, padded, tuple(counts or ()), memory=Known(layers=self._memory.layers))
            self._divided = section["parallel"], known
        return known

    def _ruled(self, section: dict[str, Any], division: _Division) -> tuple[object, ...]:
        """A key of all that the rules look at: the same for many micro-batches, so that they are asked once."""
        tokens = section["micro_batch_size"] * self.given.sequence // division.parallel.cp
        return (section["sequence_parallel"], tokens % division.parallel.tp == 0, section["recompute"])

    def _width(self, section: dict[str, Any], division: _Division) -> int | None:
        """Data-parallel ranks of a unit; None where the spec's rules forbid the section."""
        key = self._ruled(section, division)
        if key not in division.ruled:
            division.ruled[key] = self._checked(section, division.parallel)
        return division.ruled[key]

    def _checked(self, section: dict[str, Any], par: Parallel) -> int | None:
        assert par.dp is not None
        try:
            training = self._training(section, par)
            check_layout(training, self.model, self.rules)
            return check_switches(training, self.model, par.dp, self.rules)
        except (ConfigError, ValidationError):
            return None

    def _micro_batches(self, section: dict[str, Any], par: Parallel) -> int:
        assert par.dp is not None
        return self.global_batch // (int(section["micro_batch_size"]) * par.dp)

    def _job(self, section: dict[str, Any]) -> Job | None:
        """The job of a section; None where the spec's rules forbid it."""
        division = self._division(section)
        width, par = self._width(section, division), division.parallel
        if width is None:
            return None
        assert par.dp is not None
        if width not in division.layouts:
            expert_tp = par.expert_tp or par.tp
            division.layouts[width] = Layout(par.tp, par.dp, par.pp, par.cp, par.ep, expert_tp, width, par.order)
        return Job(
            training=self._training(section, par),
            model=self.base.model,
            layout=division.layouts[width],
            micro_batches=self._micro_batches(section, par),
            vocab=division.vocab,
            layer_counts=division.layer_counts,
            placement=self.base.placement,
            hardware=self.base.hardware,
        )

    def _training(self, section: dict[str, Any], parallel: Parallel) -> Training:
        """The section, validated once for each way in which the rest of it depends on the layout."""
        kind = (parallel.tp > 1, section["sequence_parallel"], parallel.ep > 1)
        if kind not in self._kinds:
            self._kinds[kind] = Training.model_validate(section)
        changed = {key: section[key] for key in ("micro_batch_size", "recompute")}
        return self._kinds[kind].model_copy(update={**changed, "parallel": parallel})

    def _fits(self, section: dict[str, Any], division: _Division, recompute: Recompute) -> bool:
        """Tell whether a section's layout fits in memory with so much recomputation."""
        size, sequence_parallel = section["micro_batch_size"], section["sequence_parallel"]
        least = division.beyond.get((sequence_parallel, recompute))
        if least is not None and size >= least:
            return False
        if not division.inputs:
            job = self._job({**section, "recompute": self._recomputes[0]})
            assert job is not None
            division.inputs.append(memory_inputs_of(job))
        inputs = division.inputs[0].with_batches(
            self._micro_batches(section, division.parallel), size, sequence_parallel=sequence_parallel
        )
        if fullest(inputs, recompute, division.memory)[1] <= self.room:
            return True
        division.beyond[sequence_parallel, recompute] = size
        return False

    def _held(self, section: dict[str, Any]) -> _Held | None:
        """The section's layout with the least recomputation that fits; None where the rules forbid it."""
        tried, division = self._recomputes, self._division(section)
        first = {**section, "recompute": tried[0]}
        if self._width(first, division) is None:
            return None
        # without recomputation; with all of it, which tells whether more has to be tried at all; what lies between
        if self._fits(section, division, tried[0]):
            return _Held(first, self._job(first))
        least = None
        for recompute in (tried[-1], *tried[1:-1]):
            one = {**section, "recompute": recompute}
            if recompute in _WITH_CONDITIONS and self._width(one, division) is None:
                continue
            fits = self._fits(section, division, recompute)
            if fits:
                least = one
            if fits != (recompute == tried[-1]):
                break
        if least is None:
            return _Held(None, None)
        return _Held(least, self._job(least))

    def _bounded(self, bounds: LowerBounds, stage: Callable[[str], None]) -> tuple[list[_Bounded], int, int]:
        """(layouts that fit, with their bounds; how many there were; how many are too large)."""
        fitting, considered, too_large = [], 0, 0
        for section in self._sections():
            found = self._held(section)
            if found is None:
                continue
            if found.section is not None and found.job is not None:
                fitting.append(_Bounded(bounds.of(found.job), found.section, found.job))
            else:
                too_large += 1
            considered += 1
            if considered % 100 == 0:
                stage(f"{considered:,} layouts, {len(fitting):,} of them fit")
        return fitting, considered, too_large

    def run(self, stage: Callable[[str], None], *, keep: int) -> Found:
        """The fastest `keep` layouts that fit, in order.

        All get a lower bound from compute alone. Whichever seems fastest is looked at next: it gets a closer
        bound, with what its exchanges take; then, if it still seems fastest, one of its passes as they are; and
        then its time. When none that is left seems faster than the last that is kept, none can be.
        """
        with _few_collections():
            return self._run(stage, keep)

    def _refined(self, bounded: _Bounded, bounds: LowerBounds) -> Iterator[float | Candidate]:
        """Yield ever closer bounds of a layout, in ps, then the layout with its time. Raises ConfigError."""
        job = bounded.job
        yield bounds.with_exchanges(job)
        closed = ClosedForm(job, self.times)
        nearly = bounds.nearly(job, closed)
        if nearly is not None:
            yield nearly
        yield bounds.closer(job, closed)
        yield bounds.played(job, closed)
        estimate = closed.estimate()
        yield Candidate(bounded.section, job, memory(memory_inputs_of(job), job.hardware.gpu), estimate)

    def _run(self, stage: Callable[[str], None], keep: int) -> Found:
        bounds = LowerBounds(in_switch=self.times.library is not None)
        fitting, considered, too_large = self._bounded(bounds, stage)
        # each time that a layout seems fastest it gets the next of its bounds, and then its time
        queue = [(bounded.ps, _ByText(bounded.section), self._refined(bounded, bounds)) for bounded in fitting]
        heapify(queue)
        candidates: list[Candidate] = []
        while queue:
            seems, name, refined = heappop(queue)
            if len(candidates) >= keep and seems >= candidates[keep - 1].estimate.step_ps:
                break
            try:
                found = next(refined)
            except ConfigError:
                continue
            if isinstance(found, Candidate):
                candidates.append(found)
                candidates.sort(key=lambda c: (c.estimate.step_ps, repr(c.section)))
            else:
                heappush(queue, (max(seems, found), name, refined))
        return Found(tuple(candidates[:keep]), considered, too_large)


def layout_line(job: Job) -> str:
    """`TP 4 × PP 2 × VP 5 × DP 8` and what else of the layout is not as usual."""
    par, layout = job.training.parallel, job.layout
    sizes = (("TP", layout.tp), ("PP", layout.pp), ("VP", par.vp), ("CP", layout.cp), ("EP", layout.ep))
    parts = [f"{name} {size}" for name, size in sizes if size > 1]
    return " × ".join([*parts, f"DP {layout.dp}"]) + (" + SP" if job.training.sequence_parallel else "")


def peak_flops(job: Job) -> float:
    return float(catalog.gpu(job.hardware.gpu).peak_flops[job.training.precision].value)
