"""A server's ranks on the cluster: what vLLM refuses of a layout, and which groups talk over which routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I32, place_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_US
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.host_placement import place as place_hosts
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import NONE, Fabric, LinkKind
from fabrictwin.nccl.settings.spec_section import settings_here
from fabrictwin.serving.config.section import Serving
from fabrictwin.serving.network.exchange import between_hosts, exchange, to_fellows
from fabrictwin.serving.network.nccl_times import NcclTimes, SendTimes
from fabrictwin.serving.network.placement import Placement, place
from fabrictwin.serving.step.all_reduce import Switches, TensorGroup
from fabrictwin.serving.step.analytic import ServedModel
from fabrictwin.serving.step.deepep import INSIDE, SCALE_BYTES, WIDE_BYTES, DeepEp, Mode, Tokens
from fabrictwin.serving.step.expert_parallel import (
    DeepEpTraffic,
    ExpertLayout,
    GatherScatter,
    MoeBackend,
    Traffic,
)
from fabrictwin.serving.step.kernels import MARLIN
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.twin.twin import Twin
from fabrictwin.workload.model.model_blocks import Weights
from fabrictwin.workload.model.model_sizes import Model

FLASHINFER_RELEASES = ("0.33",)
"""Whose all-reduces are FlashInfer's where they can be: 0.29 and newer, taken for the last modelled."""
EARLY_RELEASES = ("0.12", "0.15")
"""Without sizes of all-reduces for capability 10.3 (`all_reduce_utils.py`; 0.19 has them)."""
PADDING_RELEASES, PADDING_CAPABILITY = ("0.12",), 90
"""Whose experts in fp8 with a scale a block go to DeepGEMM in steps of any size on Hopper: until 0.12
`is_deep_gemm_e8m0_used` overrides `_valid_deep_gemm` (`fused_moe.py`); 0.15 prefers FlashInfer's, 0.19 Triton's
(`oracle/fp8.py`)."""
DEEPEP: dict[str, Mode] = {"deepep_low_latency": "low latency", "deepep_high_throughput": "normal"}


@record
class Machine:
    """GPUs of a cluster: type of their hosts and their own, how many a host has, how many hosts; its blueprint."""

    spec: Spec
    blueprint: Blueprint
    host: str
    gpu: str
    per_host: int
    hosts: int

    @cached_property
    def twin(self) -> Twin:
        """The cluster's twin, made when first asked for."""
        return make_twin(self.spec, self.blueprint)

    @cached_property
    def gpus(self) -> I32:
        """GPUs of the hosts that the spec's placement gives, in its order; all where it says nothing."""
        fabric, placement = self.twin.fabric, self.spec.placement
        if not placement.hosts and placement.order == "contiguous":
            return fabric.gpu_node
        node_host = fabric.node_host[fabric.gpu_node]
        hosts = place_hosts(self.blueprint, self.spec)
        nodes: I32 = np.concatenate([fabric.gpu_node[node_host == host] for host in hosts])
        return nodes

    def place(self, serving: Serving, first: int = 0) -> Placement:
        """Return where a server's ranks are, from a number of the GPUs on."""
        sizes = (serving.data_parallel_size, serving.pipeline_parallel_size, serving.tensor_parallel_size)
        return place(self.twin.fabric, sizes, first, self.gpus)

    def nccl(self, nodes: I32) -> NcclTimes:
        """Return NCCL among some GPUs, under the spec's `nccl` settings."""
        return NcclTimes(self.twin, nodes, settings_here(self.spec, {}))


def machine(spec: Spec) -> Machine:
    """Return the GPUs of a spec's cluster. Raises ConfigError unless all hosts with GPUs are alike."""
    blueprint = build(spec.cluster, spec=spec)
    kinds = {host.type for host in blueprint.hosts if host.type and catalog.host(host.type).gpu}
    if len(kinds) != 1:
        raise spec.error("cluster", f"got hosts of {len(kinds)} types with GPUs, expected one for a server")
    host = catalog.host(kinds.pop())
    hosts = sum(one.type == host.name for one in blueprint.hosts)
    if spec.placement.hosts:
        hosts = sum(blueprint.hosts[one].type == host.name for one in place_hosts(blueprint, spec))
    return Machine(spec, blueprint, host.name, host.gpu, host.nodes.gpu, hosts)


def served_model(
    spec: Spec, serving: Serving, model: Model, rates: Mapping[int, int] | None = None
) -> ServedModel:
    """Return a model on its GPUs; `rates` are those of links that neighbours use, b/s by port.

    Raises ConfigError for what vLLM refuses, and where there are too few.
    """
    found = machine(spec)
    if rates:
        found.twin.link_rate_bps.update(rates)
    gpus = found.per_host * found.hosts
    if serving.world * serving.replicas > gpus:
        message = f"got {serving.replicas} replicas of {serving.world} GPUs each, and the cluster has {gpus}"
        raise spec.error("workload.serving.replicas", message)
    check_layout(spec, serving, model)
    where = _placement(found, serving) if _talks_over_routes(found, serving) else None
    return ServedModel(
        model=model,
        gpu=found.gpu,
        weights=_weights(spec, serving, model),
        kv_bytes=1.0 if serving.kv_cache_dtype == "fp8" else 2.0,
        group=_tensor_group(found, serving, where),
        pipeline=serving.pipeline_parallel_size,
        experts=replace(_experts(found, serving, model, where), backend=_moe_backend(spec, serving, model)),
        sends=_sends(found, serving, where),
    )


def _moe_backend(spec: Spec, serving: Serving, model: Model) -> MoeBackend:
    """Return the kernels of experts that are asked for. Raises ConfigError where these are not modelled."""
    stored = _weights(spec, serving, model).experts
    if serving.moe_backend == "marlin" and model.experts and stored not in MARLIN:
        stored = "16 bits" if stored == "none" else stored
        message = f"got marlin for experts in {stored}, which is not modelled, expected {', '.join(MARLIN)}"
        raise spec.error("workload.serving.moe_backend", message)
    return serving.moe_backend


def _weights(spec: Spec, serving: Serving, model: Model) -> Weights:
    try:
        return serving.weights(model)
    except ConfigError as error:
        raise spec.error(str(error.key), error.message) from None


def check_layout(spec: Spec, serving: Serving, model: Model) -> None:
    """Refuse what vLLM refuses of a layout. Raises ConfigError."""
    size, stages = serving.tensor_parallel_size, serving.pipeline_parallel_size
    key = "workload.serving.tensor_parallel_size"
    if model.heads % size:
        raise spec.error(key, f"got {size}, expected a divisor of the model's {model.heads} attention heads")
    if max(model.kv_heads, size) % min(model.kv_heads, size):
        raise spec.error(
            key, f"got {size}: neither divides the {model.kv_heads} KV heads nor is a multiple of them"
        )
    if model.pattern or model.mamba:
        raise spec.error("workload.serving.model", f"got {model.name}: Mamba layers are not modelled in a server")
    longest = model.longest or model.positions
    if longest and (serving.max_model_len or 0) > longest and not serving.allow_long_max_model_len:
        message = (
            f"User-specified max_model_len ({serving.max_model_len}) is greater than the derived max_model_len "
            f"({longest} in model's config.json); VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 (allow_long_max_model_len) "
            "allows it"
        )
        raise spec.error("workload.serving.max_model_len", message)
    if stages > model.layers:
        message = f"got {stages} stages for {model.layers} layers"
        raise spec.error("workload.serving.pipeline_parallel_size", message)
    if serving.enable_expert_parallel and model.experts is None:
        message = f"got true, and {model.name} has no experts"
        raise spec.error("workload.serving.enable_expert_parallel", message)
    if serving.all2all_backend in DEEPEP and not (
        serving.enable_expert_parallel and serving.data_parallel_size > 1
    ):
        message = f"got {serving.all2all_backend}, which needs enable_expert_parallel and data parallelism"
        raise spec.error("workload.serving.all2all_backend", message)


def _talks_over_routes(found: Machine, serving: Serving) -> bool:
    """Return if a group's times are asked of the twin: all but tensor parallelism alone within hosts."""
    alone = serving.pipeline_parallel_size == serving.data_parallel_size == 1
    return not alone or found.per_host % serving.tensor_parallel_size > 0


def _placement(found: Machine, serving: Serving) -> Placement:
    """Return where the replica that lies on most hosts is, the first of equals."""
    places = [found.place(serving, number * serving.world) for number in range(serving.replicas)]
    return max(places, key=lambda one: one.hosts(one.rank_node.ravel()))


def _tensor_group(found: Machine, serving: Serving, where: Placement | None) -> TensorGroup:
    gpu, size = catalog.gpu(found.gpu), serving.tensor_parallel_size
    capability = int(gpu.compute_capability.value)
    group = where.tensor_group() if where is not None else None
    if where is None or group is None or where.hosts(group) == 1:
        flashinfer, early = (serving.release in those for those in (FLASHINFER_RELEASES, EARLY_RELEASES))
        switches = Switches(flashinfer, early, not serving.disable_custom_all_reduce)
        one = TensorGroup(size, size, gpu.nvlink, capability, switches=switches)
        if size == 1 or not gpu.nvlink or catalog.host(found.host).nodes.nvswitch:
            return one
        nodes = found.place(serving).rank_node.ravel()[:size] if group is None else group
        gbps = pair_gbps(found.twin.fabric, nodes)
        return replace(one, nvlink=gpu.nvlink if gbps else "", pair_gbps=gbps, network=found.nccl(nodes))
    return TensorGroup(size, min(size - 1, found.per_host), gpu.nvlink, capability, found.nccl(group))


def pair_gbps(fabric: Fabric, nodes: I32) -> float:
    """Return what NVLinks carry between those two of some GPUs that have fewest, GB/s; 0 where two have none."""
    place = place_of(nodes, fabric.nodes)
    ports = np.flatnonzero((fabric.port_kind == LinkKind.NVLINK) & (place[fabric.port_node] != NONE))
    peers = fabric.port_node[fabric.port_peer[ports]]
    ports, peers = ports[place[peers] != NONE], peers[place[peers] != NONE]
    carried = np.zeros((len(nodes), len(nodes)))
    np.add.at(carried, (place[fabric.port_node[ports]], place[peers]), fabric.port_payload_bps[ports] / 8e9)
    return float(carried[~np.eye(len(nodes), dtype=bool)].min())


def _sends(found: Machine, serving: Serving, where: Placement | None) -> tuple[SendTimes, ...]:
    if where is None:
        return ()
    settings, known = settings_here(found.spec, {}), {}
    sends = []
    for stage in range(serving.pipeline_parallel_size - 1):
        pairs = where.boundary(stage)
        local = [found.twin.fabric.gpu_local[found.twin.fabric.node_gpu[nodes]] for nodes in pairs]
        host = [found.twin.fabric.node_host[nodes] for nodes in pairs]
        alike = (*(part.tobytes() for part in local), (host[0] == host[1]).tobytes())
        if alike not in known:
            known[alike] = SendTimes(found.twin, pairs, settings)
        sends.append(known[alike])
    return tuple(sends)


def _experts(found: Machine, serving: Serving, model: Model, where: Placement | None) -> ExpertLayout:
    data, size = serving.data_parallel_size, serving.tensor_parallel_size
    experts, whole = model.experts, serving.enable_expert_parallel
    if experts is None:
        return ExpertLayout()
    traffic: Traffic | None = None
    if data > 1 and where is not None:
        if serving.all2all_backend in DEEPEP:
            traffic = _deepep(found, serving, model, where)
        else:
            nccl = found.nccl(where.data_group())
            traffic = GatherScatter(nccl, data, model.expert_hidden, experts.count)
    deepep = serving.all2all_backend in DEEPEP
    padded = (
        serving.weights(model).experts == "fp8"
        and serving.release in PADDING_RELEASES
        and int(catalog.gpu(found.gpu).compute_capability.value) == PADDING_CAPABILITY
        and not deepep
    )
    return ExpertLayout(data, size, whole, traffic, reduces=not deepep, padded=padded)


def put_time_us(found: Machine) -> float | None:
    """Return what a kernel's write and its flag take beside their way, None where no GPU can post to it."""
    host = next(host for host in found.blueprint.hosts if host.type and catalog.host(host.type).gpu)
    put = catalog.nic(catalog.host(host.type).nics[0].type).device_put
    return put.value / PS_PER_US if put else None


def _deepep(found: Machine, serving: Serving, model: Model, where: Placement) -> DeepEpTraffic:
    nodes, mode, experts = where.expert_group(), DEEPEP[serving.all2all_backend], model.experts
    assert experts is not None
    nvlink = catalog.gpu(found.gpu).nvlink
    if (nvlink, mode, "dispatch") not in INSIDE:
        message = f"got {serving.all2all_backend}, of which nothing was measured on {found.gpu}"
        raise found.spec.error("workload.serving.all2all_backend", message)
    hosts = where.hosts(nodes)
    pairs = (between_hosts if mode == "low latency" else to_fellows)(found.twin, nodes)
    dispatched = 1 + SCALE_BYTES if serving.weights(model).experts in ("fp8", "fp4") else WIDE_BYTES
    tokens = Tokens(model.expert_hidden, experts.top_k, experts.count, dispatched)
    way, put_us = exchange(found.twin, *pairs), put_time_us(found)
    if put_us is None and hosts > 1 and mode == "low latency":
        message = f"got {serving.all2all_backend}, whose kernels post to ConnectX adapters (IBGDA) alone"
        raise found.spec.error("workload.serving.all2all_backend", message)
    inside = exchange(found.twin, nodes[:1], nodes[1:2]).latency_us
    calls = DeepEp(len(nodes), -(-len(nodes) // hosts), nvlink, mode, tokens, way, put_us or 0.0, inside)
    size = serving.tensor_parallel_size
    gather = found.nccl(where.tensor_group()) if size > 1 else None
    return DeepEpTraffic(calls, size, gather)
