"""The job: a checked training step, on the ranks that it was placed on."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from fabrictwin import catalog
from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.catalog.step_shares import step_shares
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.faults import find_faults
from fabrictwin.cluster.host_placement import place
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric
from fabrictwin.workload.job.rank_layout import Layout, split_layers
from fabrictwin.workload.job.training_checks import Wrong, check_layout, check_switches
from fabrictwin.workload.job.workload_section import Training, Workload
from fabrictwin.workload.layers.feedforward import peak_load, peak_loads
from fabrictwin.workload.layers.kernel_traffic import traffic_of
from fabrictwin.workload.layers.transformer import (
    Adapters,
    ExpertRouting,
    Hiding,
    Kernels,
    LossKernels,
    Shape,
    Sharing,
)
from fabrictwin.workload.model.model_sizes import Model

MOST_MICRO_BATCHES = 100_000


@record
class Placement:
    """Hosts of ranks, and ranks that are not as the others."""

    host_of_rank: I64
    slowdown: npt.NDArray[np.float64]  # [ranks]
    differs: npt.NDArray[np.bool_]  # [ranks] slow or late: not to be folded with the others


@record
class Hardware:
    """Type of a job's GPUs, and rates between them."""

    gpu: str
    inside_bps: float  # of one GPU to the others of its host
    outside_bps: float  # of one GPU's share of its host's adapters
    host_bps: float  # of all adapters of the host that has most


@record
class Job:
    """Everything that lowering needs, checked."""

    training: Training
    model: Model
    layout: Layout
    micro_batches: int
    vocab: int  # padded
    layer_counts: tuple[int, ...]  # [pp × vp] of each virtual stage
    placement: Placement
    hardware: Hardware

    @cached_property
    def compute_share(self) -> float:
        """Return what kernels reach in steps: as given, or of this GPU and software."""
        given = self.training.compute_share
        return step_shares().of(self.hardware.gpu, self.training.software) if given is None else given

    @property
    def chunks(self) -> int:
        return self.training.parallel.vp

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """[pp] layers of each stage, all of its chunks together."""
        pp = self.layout.pp
        return tuple(sum(self.layer_counts[s::pp]) for s in range(pp))

    @cached_property
    def shape(self) -> Shape:
        t, layout = self.training, self.layout
        host = (0, 0, 0) if t.host.graphs else (t.host.routing, t.host.expert, t.host.interleaved)
        return Shape(
            self.model,
            t.micro_batch_size,
            t.sequence,
            self.vocab,
            Sharing(
                tp=layout.tp,
                cp=layout.cp,
                ep=layout.ep,
                ep_hosts=self.ep_hosts,
                expert_tp=layout.expert_tp,
                sequence_parallel=t.sequence_parallel,
                context=t.parallel.context,
                dispatcher=t.routing.dispatcher,
            ),
            Hiding(t.overlap.tensor, t.overlap.collective_sms, t.overlap.tensor_sms, t.overlap.experts),
            Kernels(
                t.attention,
                traffic_of(t.weights, eager=t.kernels == "eager", fused_norms=t.fused_norms),
                t.recompute_modules,
                t.scan_share,
                t.host.captured,
                LossKernels(t.loss, t.metrics),
                None if t.lora is None else Adapters(t.lora.rank, t.lora.targets),
            ),
            ExpertRouting(t.routing.capacity_factor, *host),
        )

    @cached_property
    def ep_hosts(self) -> int:
        """Number of hosts that an expert-parallel group lies on."""
        layout = self.layout
        if layout.ep == 1:
            return 1
        first = layout.grid[0, 0, : layout.ep * layout.expert_tp : layout.expert_tp]
        return len(set(self.placement.host_of_rank[first].tolist()))

    @property
    def gradient_bytes(self) -> int:
        training = self.training
        if training.weights != "master":
            return 4 if training.weights == "autocast" else 2
        return 4 if training.gradient_precision == "fp32" else 2

    @property
    def parameter_bytes(self) -> int:
        """Bytes of a parameter as it is gathered: one where products take fp8."""
        if self.training.weights == "autocast":
            return 4
        return 1 if self.training.precision == "fp8" else 2

    @cached_property
    def _first_layer(self) -> list[int]:
        return [sum(self.layer_counts[:v]) for v in range(len(self.layer_counts))]

    def layers_of(self, stage: int, chunk: int) -> range:
        """The layers, counted from 0, that a chunk of a stage holds."""
        v = chunk * self.layout.pp + stage
        return range(self._first_layer[v], self._first_layer[v] + self.layer_counts[v])

    def load(self, layer: int) -> float:
        """Tokens of the busiest expert-parallel rank over the mean; 0 in a dense layer."""
        found = self.model.experts
        if found is None or not self.model.is_sparse(layer):
            return 0.0
        routing = self.training.routing
        return peak_load(found.count, self.layout.ep, routing.imbalance, routing.seed, layer)

    @property
    def loads(self) -> tuple[float, ...]:
        """Return the load of every layer."""
        found, routing = self.model.experts, self.training.routing
        if found is None:
            return (0.0,) * self.model.layers
        return peak_loads(self.model.sparse_before, found.count, self.layout.ep, routing.imbalance, routing.seed)

    # --- parameters of one rank

    def trained(self, parameters: int) -> int:
        """Return how many of these weights are trained: none where adapters are."""
        return 0 if self.training.lora else parameters

    def frozen(self, parameters: int) -> int:
        """Return how many of these weights are held and not trained."""
        return parameters - self.trained(parameters)

    @cached_property
    def adapter_parameters(self) -> int:
        """Parameters of one layer's adapters: the side at the inner dimension, and the one at the outer."""
        lora, tp = self.training.lora, self.layout.tp
        if lora is None:
            return 0
        found = (*self.model.attention_linears(), *self.model.mlp_linears(self.model.ffn))
        return sum(
            lora.rank * (each.inner + each.out // tp if each.split == "column" else each.inner // tp + each.out)
            for each in found
            if each.name in lora.targets
        )

    def embedding_parameters(self) -> int:
        """The vocabulary is divided over tensor-parallel ranks."""
        return self.vocab * self.model.hidden // self.layout.tp

    def first_parameters(self) -> int:
        """Weights that the first stage holds beside layers."""
        return self.embedding_parameters() + self.model.positions * self.model.hidden

    def last_parameters(self) -> int:
        """Weights that the last stage holds beside layers; of a tied model, a copy of the embedding."""
        own = self.layout.pp > 1 or not self.model.tied
        predictors = self.model.predictors * self.model.predictor_on_rank(self.layout.tp)
        return self.model.norm_parameters + (self.embedding_parameters() if own else 0) + predictors

    def last_experts(self) -> int:
        """Parameters of routed experts among them."""
        return self.model.predictors * self.experts_of_layer()

    def experts_of_layer(self) -> int:
        """Parameters of one layer's routed experts on one rank."""
        if self.model.experts is None:
            return 0
        own = self.model.experts.count // self.layout.ep
        return own * self.model.expert_parameters() // self.layout.expert_tp

    def layer_parameters(self, layer: int) -> tuple[int, int, int]:
        """(trained: dense, of routed experts; frozen)."""
        sparse = self.model.is_sparse(layer)
        experts = self.experts_of_layer() if sparse else 0
        whole = self.model.layer_on_rank(layer, self.layout.tp)
        return self.trained(whole) + self.adapter_parameters, experts, self.frozen(whole)

    def split_parameters(self, stage: int) -> tuple[int, int]:
        """(dense, of routed experts) on one rank of a stage, that are trained."""
        dense = experts = 0
        for chunk in range(self.chunks):
            for layer in self.layers_of(stage, chunk):
                a, b, _ = self.layer_parameters(layer)
                dense, experts = dense + a, experts + b
        dense += self.trained(self.first_parameters()) if stage == 0 else 0
        if stage == self.layout.pp - 1:
            dense += self.trained(self.last_parameters())
            experts += self.last_experts()
        return dense, experts

    def stage_parameters(self, stage: int) -> int:
        """Trained parameters on one rank of a stage."""
        return sum(self.split_parameters(stage))


def check(spec: Spec, blueprint: Blueprint, fabric: Fabric) -> tuple[Job, npt.NDArray[np.int32]]:
    """The job and the node of each rank. Raises ConfigError for sizes that do not divide."""
    training = spec.validate_section("workload", Workload).training
    wrong = Wrong(spec)
    model = wrong.read_model(training)
    par = training.parallel
    check_layout(training, model, wrong)

    order = place(blueprint, spec)
    gpu_host = fabric.node_host[fabric.gpu_node]
    gpus = [np.flatnonzero(gpu_host == host) for host in order]
    available = sum(len(g) for g in gpus)
    per_replica = par.tp * par.pp * par.cp
    axes = f"tp {par.tp} × pp {par.pp}" + (f" × cp {par.cp}" if par.cp > 1 else "")
    if par.dp is None and (available < per_replica or available % per_replica):
        raise wrong(
            "parallel", f"got {axes} = {per_replica}, expected a divisor of the cluster's {available} GPUs"
        )
    dp = par.dp or available // per_replica
    width = check_switches(training, model, dp, wrong)
    layout = Layout(par.tp, dp, par.pp, par.cp, par.ep, par.expert_tp or par.tp, width, par.order)
    if layout.ranks > available:
        raise wrong(
            "parallel",
            f"got {axes} × dp {dp} = {layout.ranks} ranks, expected at most the cluster's {available} GPUs",
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
    gpu = gpu_types.pop()
    if training.precision not in catalog.gpu(gpu).gemm:
        known = ", ".join(sorted({"bf16", "fp16", "fp8", "fp4"} & set(catalog.gpu(gpu).gemm)))
        raise wrong("precision", f"got {training.precision}, expected what {gpu} computes in: {known}")

    size = training.micro_batch_size * dp
    if training.global_batch is not None and training.global_batch % size:
        raise wrong(
            "global_batch",
            f"got {training.global_batch}, expected a multiple of micro_batch_size × dp = {size}",
        )
    micro_batches = training.micro_batches or (training.global_batch or size) // size
    if micro_batches > MOST_MICRO_BATCHES:
        raise wrong(
            "micro_batches" if training.micro_batches else "global_batch",
            f"got {micro_batches:,} micro-batches, expected at most {MOST_MICRO_BATCHES:,}",
        )
    if par.vp > 1 and micro_batches % par.pp:
        raise wrong(
            "micro_batches" if training.micro_batches else "global_batch",
            f"got {micro_batches} micro-batches, expected a multiple of pp {par.pp} for the interleaved schedule",
        )
    unit = training.pad_vocabulary * par.tp
    nodes = fabric.gpu_node[ranks]
    slowdown, differs = slow_ranks(spec, blueprint, fabric, ranks)
    counts = split_layers(model.layers, par.pp * par.vp, ends_as_layers=par.ends_as_layers, given=par.layers)
    inside, outside = gpu_rates(fabric, int(nodes[0]), len(gpus[0]))
    job = Job(
        training=training,
        model=model,
        layout=layout,
        micro_batches=micro_batches,
        vocab=-(-model.vocab // unit) * unit,
        layer_counts=tuple(counts or ()),
        placement=Placement(fabric.node_host[nodes].astype(np.int64), slowdown, differs),
        hardware=Hardware(gpu, inside, outside, most_out_bps(fabric)),
    )
    return job, nodes


def slow_ranks(
    spec: Spec, blueprint: Blueprint, fabric: Fabric, gpus: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """([ranks] how many times as long compute takes, true where a rank is slow or late); `gpus` is each rank's."""
    slowdown, differs = np.ones(len(gpus)), np.zeros(len(gpus), np.bool_)
    for fault in find_faults(blueprint, spec)[1]:
        here = (fabric.node_host[fabric.gpu_node[gpus]] == fault.host) & (fabric.gpu_local[gpus] == fault.gpu)
        slowdown[here] = fault.slowdown
        differs[here] = fault.slowdown != 1 or fault.late_ps > 0
    return slowdown, differs


def gpu_rates(fabric: Fabric, node: int, gpus: int) -> tuple[float, float]:
    """(out of one GPU into its host, its share of the host's adapters), payload."""
    own = np.flatnonzero(fabric.port_node == node)
    fastest = own[fabric.port_kind[own] == fabric.port_kind[own[np.argmax(fabric.port_payload_bps[own])]]]
    inside = float(fabric.port_payload_bps[fastest].sum())
    adapters = fabric.nic_port[fabric.node_host[fabric.nic_node] == fabric.node_host[node]]
    adapters = adapters[adapters != NONE]
    network = adapters[np.isin(fabric.port_kind[adapters], NETWORK)]
    return inside, float(fabric.port_payload_bps[network].sum()) / gpus


def most_out_bps(fabric: Fabric) -> float:
    """Payload of all adapters together of the host that has most."""
    ports = fabric.nic_port[fabric.nic_port != NONE]
    ports = ports[np.isin(fabric.port_kind[ports], NETWORK)]
    host = fabric.node_host[fabric.port_node[ports]]
    return float(np.bincount(host, weights=fabric.port_payload_bps[ports]).max(initial=0.0))
