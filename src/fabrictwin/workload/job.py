"""The job: a checked training step, on the ranks that it was placed on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fabrictwin import catalog
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.faults import find_faults
from fabrictwin.cluster.placement import place
from fabrictwin.cluster.spec import Spec
from fabrictwin.errors import ConfigError
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.workload.layout import Layout
from fabrictwin.workload.models import Model
from fabrictwin.workload.spec import Training, Workload
from fabrictwin.workload.transformer import Shape

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """Everything that lowering needs, checked."""

    training: Training
    model: Model
    layout: Layout
    micro_batches: int
    vocab: int  # padded
    host_of_rank: I64
    slowdown: npt.NDArray[np.float64]  # [ranks]
    gpu: str

    @property
    def shape(self) -> Shape:
        t = self.training
        return Shape(self.model, self.layout.tp, t.micro_batch_size, t.sequence, self.vocab, t.attention)

    @property
    def stage_layers(self) -> int:
        return self.model.layers // self.layout.pp

    @property
    def gradient_bytes(self) -> int:
        return 4 if self.training.gradient_precision == "fp32" else 2

    def layer_parameters(self) -> int:
        """Of one layer on one tensor-parallel rank: matrices and column biases are divided, the rest is whole."""
        model, tp = self.model, self.layout.tp
        divided = model.layer_matrix_parameters
        if model.family == "gpt2":
            divided += model.qkv_width + model.up_width
        return divided // tp + model.layer_parameters - divided

    def stage_parameters(self, stage: int) -> int:
        """On one rank of a stage; the last stage of a tied model holds a copy of the embedding."""
        model, pp = self.model, self.layout.pp
        count = self.stage_layers * self.layer_parameters()
        embedding = self.embedding_parameters()
        if stage == 0:
            count += embedding + model.positions * model.hidden
        if stage == pp - 1:
            count += model.final_norm_parameters
            if pp > 1 or not model.tied:
                count += embedding
        return count

    def embedding_parameters(self) -> int:
        """On one rank: the vocabulary is divided over tensor-parallel ranks."""
        return self.vocab * self.model.hidden // self.layout.tp


def check(spec: Spec, blueprint: Blueprint, fabric: Fabric) -> tuple[Job, npt.NDArray[np.int32]]:
    """The job and the node of each rank. Raises ConfigError for sizes that do not divide."""
    training = spec.validate_section("workload", Workload).training
    key = "workload.training"
    try:
        model = training.read_model(spec.folder)
    except ConfigError as error:
        raise (spec.error(error.key or key, error.message) if error.file is None else error) from None
    par = training.parallel

    def wrong(where: str, message: str) -> ConfigError:
        return spec.error(f"{key}.{where}", message)

    if model.heads % par.tp:
        raise wrong(
            "parallel.tp", f"got {par.tp}, expected a divisor of the model's {model.heads} attention heads"
        )
    if model.kv_heads % par.tp:
        raise wrong(
            "parallel.tp", f"got {par.tp}, expected a divisor of the model's {model.kv_heads} key-value heads"
        )
    if model.ffn % par.tp:
        raise wrong("parallel.tp", f"got {par.tp}, expected a divisor of the MLP's width, {model.ffn}")
    if model.layers % par.pp:
        raise wrong("parallel.pp", f"got {par.pp}, expected a divisor of the model's {model.layers} layers")
    if model.positions and training.sequence > model.positions:
        raise wrong(
            "sequence", f"got {training.sequence}, expected at most the model's {model.positions} positions"
        )

    order = place(blueprint, spec)
    gpus = [np.flatnonzero(fabric.node_host[fabric.gpu_node] == host) for host in order]
    available = sum(len(g) for g in gpus)
    per_replica = par.tp * par.pp
    if par.dp is None and (available < per_replica or available % per_replica):
        raise wrong(
            "parallel",
            f"got tp {par.tp} × pp {par.pp} = {per_replica}, expected a divisor of the cluster's {available} GPUs",
        )
    dp = par.dp or available // per_replica
    layout = Layout(par.tp, dp, par.pp)
    if layout.ranks > available:
        raise wrong(
            "parallel",
            f"got tp {par.tp} × pp {par.pp} × dp {dp} = {layout.ranks} ranks, "
            f"expected at most the cluster's {available} GPUs",
        )
    used = int(np.searchsorted(np.cumsum([len(g) for g in gpus]), layout.ranks)) + 1
    order = place(blueprint, spec, hosts=used)
    ranks = np.concatenate(gpus[:used])[: layout.ranks]
    kinds = {blueprint.hosts[h].type for h in order}
    gpu_types = {catalog.host(kind).gpu for kind in kinds}
    if len(gpu_types) != 1:
        raise spec.error(
            "placement", f"got hosts with {' and '.join(sorted(gpu_types))}, expected one type of GPU"
        )

    size = training.micro_batch_size * dp
    if training.global_batch is not None and training.global_batch % size:
        raise wrong(
            "global_batch",
            f"got {training.global_batch}, expected a multiple of micro_batch_size × dp = {size}",
        )
    unit = training.pad_vocabulary * par.tp
    slowdown = np.ones(layout.ranks)
    nodes = fabric.gpu_node[ranks]
    _, slow = find_faults(blueprint, spec)
    for fault in slow:
        slowdown[(fabric.node_host[nodes] == fault.host) & (fabric.gpu_local[ranks] == fault.gpu)] = fault.slowdown
    job = Job(
        training=training,
        model=model,
        layout=layout,
        micro_batches=training.micro_batches or (training.global_batch or size) // size,
        vocab=-(-model.vocab // unit) * unit,
        host_of_rank=fabric.node_host[nodes].astype(np.int64),
        slowdown=slowdown,
        gpu=gpu_types.pop(),
    )
    return job, nodes
