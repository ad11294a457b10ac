"""A training step of a spec, from its `workload.training` section to a program and what it amounts to."""

from __future__ import annotations

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.workload.job.job import Job, check
from fabrictwin.workload.job.nccl_communications import LibraryOf, library_of
from fabrictwin.workload.job.workload_section import workload_schema
from fabrictwin.workload.memory.gpu_memory import memory
from fabrictwin.workload.memory.memory_inputs import memory_inputs_of
from fabrictwin.workload.step.step_work import Lowered, Work
from fabrictwin.workload.step.training_program import build_program

__all__ = ["Job", "build_program", "check", "lower", "workload_schema"]


def lower(spec: Spec, blueprint: Blueprint, fabric: Fabric, make_library: LibraryOf = library_of) -> Lowered:
    """The spec's training step as a program on this fabric. Raises ConfigError."""
    job, rank_node = check(spec, blueprint, fabric)
    training, model, layout = job.training, job.model, job.layout
    held = memory(memory_inputs_of(job), job.hardware.gpu)
    if not held.fits and spec.run.check_memory == "error":
        raise spec.error("workload.training.parallel", f"got a layout that needs {held.line}")
    try:
        library = make_library(spec, blueprint, fabric, rank_node)
        program = build_program(job, name=spec.name, fold=spec.run.fold, library=library)
    except ConfigError as error:
        raise spec.error(error.key or "workload.training", error.message) from None
    tokens = layout.dp * job.micro_batches * training.micro_batch_size * training.sequence
    needed, executed = model.step_flops(
        tokens,
        training.sequence,
        recompute=training.recompute,
        ends_early=training.recompute_ends_early,
        frozen=training.lora is not None,
    )
    gpu = catalog.gpu(job.hardware.gpu)
    work = Work(
        tokens=tokens,
        model_flops=float(needed),
        hardware_flops=float(executed),
        parameters=model.parameters,
        peak_flops_per_gpu=gpu.peak_flops[training.precision].value,
        precision=training.precision,
    )
    par = training.parallel
    axes = [f"TP {layout.tp}", f"PP {layout.pp}"]
    axes += [f"VP {par.vp}"] if par.vp > 1 else []
    axes += [f"CP {layout.cp}"] if layout.cp > 1 else []
    axes += [f"EP {layout.ep}"] if layout.ep > 1 else []
    batches = f"{job.micro_batches} micro-batch{'' if job.micro_batches == 1 else 'es'}"
    line = (
        f"{model.name} ({model.parameters / 1e9:.4g} B parameters), "
        f"{' × '.join(axes)} × DP {layout.dp}, "
        f"{batches} of {training.micro_batch_size} × {training.sequence:,} tokens, "
        f"{training.precision}"
    )
    notes = ["simple collectives: rings over all adapters"] if library is None else [*library.notes]
    notes.append("FLOPs count attention in full, not halved for the causal mask")
    if job.vocab != model.vocab:
        notes.append(f"vocabulary padded from {model.vocab:,} to {job.vocab:,}")
    if gpu.gemm[training.precision].estimate:
        notes.append(
            f"matrix throughput of {job.hardware.gpu} in {training.precision} is an estimate (see the catalog)"
        )
    if not held.fits:
        notes.append(f"a GPU's memory: {held.line}")
    return Lowered(program, rank_node, work, line, tuple(notes), held)
