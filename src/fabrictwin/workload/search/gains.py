"""Which change would gain most: a step in closed form, once as it is and once for every change to it.

Three kinds of change. *Removed*: what a kind of communication costs if it took no time, that is what is exposed of
it and what it delays; waiting between stages. *Faster*: all communication inside hosts, or between them, in half
the time; kernels a tenth faster. *Settings*: switches that are off, other numbers of virtual stages, micro-batches
of twice or half the size, less recomputation, fp8; those that the rules forbid or that do not fit are left out.

A change is made alone; gains do not add up. The closed form knows the fabric as it was built: no faults, no noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

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
from fabrictwin.workload.job.workload_section import Training
from fabrictwin.workload.memory.gpu_memory import memory
from fabrictwin.workload.memory.memory_inputs import memory_inputs_of
from fabrictwin.workload.step.closed_form import ClosedForm
from fabrictwin.workload.step.communication_times import CommunicationTimes

Kind = Literal["removed", "faster", "setting"]

REMOVED = {
    "tp": "no tensor-parallel communication",
    "cp": "no context-parallel communication",
    "ep": "no expert-parallel communication",
    "pp": "no time for messages between stages",
    "dp": "no data-parallel communication",
}


@record
class Gain:
    """A change, and the step's time with it; `gained_ps` is below 0 where it costs."""

    key: str
    name: str
    kind: Kind
    step_ps: int
    gained_ps: int

    @property
    def share(self) -> float:
        """Share of the step as it is."""
        return self.gained_ps / (self.step_ps + self.gained_ps)


def gains(spec: Spec, blueprint: Blueprint, fabric: Fabric) -> tuple[Gain, ...]:
    """Every change that may be made and makes a difference, what gains most first; none of a spec with faults.

    Raises ConfigError for a spec that is wrong.
    """
    if spec.faults:
        return ()
    job, nodes = check(spec, blueprint, fabric)
    times = CommunicationTimes(fabric, nodes, library_of(spec, blueprint, fabric, nodes))
    estimate = ClosedForm(job, times).estimate()
    base = estimate.step_ps
    changes = [*_cheaper(job, times, fabric, nodes), *_settings(spec, job, times)]
    if job.layout.pp > 1:
        changes.append(("no_bubble", "no bubble on the busiest stage", "removed", min(estimate.balanced_ps, base)))
    found = [Gain(key, name, kind, step, base - step) for key, name, kind, step in changes if step != base]
    return tuple(sorted(found, key=lambda gain: (-gain.gained_ps, gain.key)))


_Found = tuple[str, str, Kind, int]


def _cheaper(
    job: Job, times: CommunicationTimes, fabric: Fabric, nodes: npt.NDArray[np.int32]
) -> Iterator[_Found]:
    layout = job.layout
    there = {
        "tp": layout.tp > 1,
        "cp": layout.cp > 1,
        "ep": layout.ep > 1,
        "pp": layout.pp > 1,
        "dp": layout.batch_ranks > 1,
    }
    for category, name in REMOVED.items():
        if there[category]:
            step = ClosedForm(job, times.scaled({category: 0.0})).estimate().step_ps
            yield f"no_{category}", name, "removed", step
    several = len(np.unique(fabric.node_host[nodes])) > 1
    for place, name in (("inside", "inside hosts"), ("between", "between hosts")):
        if (place == "inside" and layout.ranks > 1) or (place == "between" and several):
            step = ClosedForm(job, times.scaled({place: 0.5})).estimate().step_ps
            yield f"faster_{place}", f"communication {name} in half the time", "faster", step
    faster = job.training.model_copy(update={"compute_share": job.compute_share * 1.1})
    step = ClosedForm(replace(job, training=faster), times.without_passes()).estimate().step_ps
    yield "faster_compute", "kernels 10% faster", "faster", step


def _settings(spec: Spec, job: Job, times: CommunicationTimes) -> Iterator[_Found]:
    for key, name, training in _changed(job):
        other = _job_of(spec, job, training)
        if other is not None:
            yield key, name, "setting", ClosedForm(other, times.without_passes()).estimate().step_ps


def _job_of(spec: Spec, job: Job, training: Training) -> Job | None:
    """The job with another training section; None where it may not be, or does not fit where the job does."""
    par, model, wrong = training.parallel, job.model, Wrong(spec)
    dp = job.layout.dp
    batch = job.micro_batches * job.training.micro_batch_size
    try:
        check_layout(training, model, wrong)
        width = check_switches(training, model, dp, wrong)
    except ConfigError:
        return None
    if batch % training.micro_batch_size:
        return None
    count = batch // training.micro_batch_size
    if par.vp > 1 and count % par.pp:
        return None
    counts = split_layers(model.layers, par.pp * par.vp, ends_as_layers=par.ends_as_layers, given=par.layers)
    other = replace(
        job,
        training=training,
        layout=Layout(par.tp, dp, par.pp, par.cp, par.ep, par.expert_tp or par.tp, width, par.order),
        micro_batches=count,
        layer_counts=tuple(counts or ()),
    )
    fits = memory(memory_inputs_of(other), job.hardware.gpu).fits
    return other if fits or not memory(memory_inputs_of(job), job.hardware.gpu).fits else None


def _changed(job: Job) -> Iterator[tuple[str, str, Training]]:
    """(key, name, training section) of every other setting worth a try."""
    t = job.training
    par, overlap = t.parallel, t.overlap

    def with_(key: str, section: Any, **update: Any) -> Training:
        return t.model_copy(update={key: section.model_copy(update=update)})

    for key, name in (
        ("gradients", "gradients reduced beside backward"),
        ("parameters", "parameters gathered beside forward"),
        ("pipeline", "messages between stages beside compute"),
    ):
        if not getattr(overlap, key):
            yield f"overlap_{key}", name, with_("overlap", overlap, **{key: True})
    if par.tp > 1 and overlap.tensor != "full":
        kind = "full" if t.sequence_parallel else "gradients"
        if kind != overlap.tensor:
            name = "tensor-parallel communication beside products"
            yield "overlap_tensor", name, with_("overlap", overlap, tensor=kind)
    if par.tp > 1 and not t.sequence_parallel:
        yield "sequence_parallel", "sequence parallel", t.model_copy(update={"sequence_parallel": True})
    lighter = {"full": ("none", "selective", "operations"), "operations": ("none",), "selective": ("none",)}
    for less in lighter.get(t.recompute, ()):
        if less != "selective" or t.attention == "materialised":
            yield f"recompute_{less}", f"recompute: {less}", t.model_copy(update={"recompute": less})
    if t.precision in ("bf16", "fp16") and "fp8" in catalog.gpu(job.hardware.gpu).gemm:
        yield "fp8", "products in fp8", t.model_copy(update={"precision": "fp8"})
    if t.kernels == "eager":
        yield "fused", "kernels fused by a compiler", t.model_copy(update={"kernels": "fused"})
    if not t.host.graphs:
        yield "graphs", "passes captured in CUDA graphs", with_("host", t.host, graphs=True)
    if t.routing.imbalance:
        yield "balance", "experts evenly loaded", with_("routing", t.routing, imbalance=0.0)
    if par.pp > 1 and par.schedule == "1f1b" and par.layers is None:
        for vp in _chunks(job):
            yield (
                f"vp_{vp}",
                f"{vp} virtual stages a stage" if vp > 1 else "no virtual stages",
                with_("parallel", par, vp=vp),
            )
    for size in (t.micro_batch_size * 2, t.micro_batch_size // 2):
        if size:
            yield (
                f"micro_batch_{size}",
                f"micro-batches of {size} sequence{'s' if size > 1 else ''}",
                t.model_copy(update={"micro_batch_size": size}),
            )


def _chunks(job: Job) -> list[int]:
    """The next numbers of virtual stages, fewer and more, that divide the layers."""
    par, layers = job.training.parallel, job.model.layers
    ends = par.ends_as_layers
    able = [
        vp
        for vp in range(1, layers // par.pp + 2)
        if split_layers(layers, par.pp * vp, ends_as_layers=ends, given=None) is not None
    ]
    fewer, more = [vp for vp in able if vp < par.vp], [vp for vp in able if vp > par.vp]
    return [*fewer[-1:], *more[:1]]
