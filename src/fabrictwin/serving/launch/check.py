"""Judge a launch on a cluster: what vLLM refuses, warns of, does silently and logs, and what it would reach."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from fabrictwin.base.arrays import I32
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.log.log import Log, Processes
from fabrictwin.nccl.log.log_connect import Connections
from fabrictwin.nccl.log.log_init import Scene
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.settings.spec_section import settings_here
from fabrictwin.nccl.tuning.tuner import tuner
from fabrictwin.serving.config.layout import Machine, machine
from fabrictwin.serving.config.section import Serving
from fabrictwin.serving.config.server import Server, server, serving_section
from fabrictwin.serving.launch.command_line import Launch, read_launch
from fabrictwin.serving.launch.container import Container, read_containers
from fabrictwin.serving.network.placement import Placement, place
from fabrictwin.serving.predict import Prediction, predict
from fabrictwin.serving.report.server import cache_lines
from fabrictwin.serving.step.kernels import MARLIN

Kind = Literal["refused", "warned", "silent", "left out", "logged"]
LINES = 4
"""Lines of NCCL's log that are shown."""


@record
class Finding:
    """One thing that a launch meets."""

    kind: Kind
    text: str


@record
class Check:
    """A judged launch: findings, and what a benchmark would print of it, None where vLLM does not start."""

    findings: tuple[Finding, ...]
    prediction: Prediction | None

    @property
    def refused(self) -> bool:
        """Return if vLLM does not start."""
        return any(finding.kind == "refused" for finding in self.findings)


def check(spec: Spec, given: str, *, seed: int | None = None) -> Check:
    """Return what a launch meets on a spec's cluster: shell text, or a file with it or with containers.

    The spec's model stands for the one that is named, its benchmark is sent. Raises ConfigError where nothing is
    launched.
    """
    launch, container = _read(given, serving_section(spec).release)
    found = machine(spec)
    findings = [*_layout_findings(launch, found, container), *_container_findings(launch, container)]
    if any(finding.kind == "refused" for finding in findings):
        return Check(tuple(findings), None)
    asked = _asked(spec, launch, container)
    marlin = _takes_marlin(spec, launch)
    if marlin:
        asked = _with_serving(asked, moe_backend="marlin")
    try:
        serving = serving_section(asked)
        ready = server(asked, serving)
    except ConfigError as error:
        findings.append(Finding("refused", _bare(error)))
        return Check(tuple(findings), None)
    findings += _silent(serving, ready)
    left_out = {name: what for name, what in launch.left_out.items() if not (marlin and name == "moe-backend")}
    findings += [Finding("left out", f"--{name}: {what}") for name, what in left_out.items()]
    findings += [Finding("logged", line) for line in (*cache_lines(ready), *_network_lines(asked, serving))]
    return Check(tuple(findings), predict(asked, seed=seed))


def _read(given: str, release: str) -> tuple[Launch, Container | None]:
    path = Path(given) if len(given) < 4096 and "\n" not in given and "vllm" not in given.split() else None
    if path is None or not path.is_file():
        return read_launch(given, release=release), None
    text = read_text(path)
    if path.suffix not in (".yaml", ".yml"):
        return read_launch(text, release=release), None
    commands, container = read_containers(text, path)
    try:
        return read_launch(commands, container.environment, release), container
    except ConfigError as error:
        raise error.within(file=path) from None


def _bare(error: ConfigError) -> str:
    key = error.key.removeprefix("workload.serving.") if error.key else ""
    return f"{key}: {error.message}" if key else error.message


def _asked(spec: Spec, launch: Launch, container: Container | None) -> Spec:
    """Return the spec with the launch's server in it, and what its containers take from the hosts."""
    workload = dict(spec.workload).get("serving", {})
    kept = {key: workload[key] for key in ("model", "release", "benchmark", "host") if key in workload}
    if "model" not in kept:
        raise spec.error("workload.serving.model", "expected the model's config.json, which a command only names")
    variables = {name: value for name, value in launch.environment.items() if name.startswith("NCCL_")}
    nccl = {**(spec.nccl or {}), **variables}
    faults = list(spec.to_dict().get("faults", ()))
    if container is not None and not container.rdma_devices:
        faults.append({"host": "*", "cause": "no-rdma-devices"})
    asked = spec.with_({"faults": faults, **({"nccl": nccl} if nccl else {})})
    if _is_set(launch, "VLLM_ALLOW_LONG_MAX_MODEL_LEN"):
        kept["allow_long_max_model_len"] = True
    return asked.model_copy(update={"workload": {"serving": {**kept, **launch.settings}}})


def _with_serving(spec: Spec, **settings: Any) -> Spec:
    return spec.model_copy(update={"workload": {"serving": {**dict(spec.workload)["serving"], **settings}}})


def _takes_marlin(spec: Spec, launch: Launch) -> bool:
    """Return True where Marlin is asked for, by option or by the variable that came before, and is modelled."""
    asked = launch.launch.get("moe-backend", "auto")
    by_variable = asked == "auto" and _is_set(launch, "VLLM_MXFP4_USE_MARLIN")
    if asked != "marlin" and not by_variable:
        return False
    own = serving_section(spec).model_copy(update={"quantization": launch.settings.get("quantization", "auto")})
    try:
        stored = own.weights(own.read_model(spec.folder)).experts
    except ConfigError:  # told of the server
        return False
    return stored == "mxfp4" if by_variable else stored in MARLIN


def _is_set(launch: Launch, variable: str) -> bool:
    return launch.environment.get(variable, "0").lower() in ("1", "true")


def _world(launch: Launch) -> tuple[int, int]:
    """Return the GPUs of one engine, and data parallel ranks."""
    settings: Mapping[str, Any] = launch.settings
    world = settings.get("tensor_parallel_size", 1) * settings.get("pipeline_parallel_size", 1)
    return world, settings.get("data_parallel_size", 1)


def _layout_findings(launch: Launch, found: Machine, container: Container | None) -> Iterator[Finding]:
    """Yield what vLLM says of world sizes, nodes and executors (`vllm/config/parallel.py`, `ray_utils.py`)."""
    world, data = _world(launch)
    nodes = launch.launch.get("nnodes", 1)
    backend = launch.launch.get("distributed-executor-backend")
    ray = backend == "ray" or launch.launch.get("data-parallel-backend") == "ray"
    if backend not in (None, "ray", "mp", "uni", "external_launcher"):
        yield Finding("refused", f"argument --distributed-executor-backend: invalid choice: '{backend}'")
        return
    joined = max(launch.ray_nodes, 1) if ray else nodes
    if joined > found.hosts:
        yield Finding("refused", f"the cluster has {found.hosts} hosts, and {joined} are asked for")
        return
    if world % nodes and not ray:
        yield Finding("refused", f"World size ({world}) must be divisible by the number of nodes ({nodes})")
    elif ray and world * data > joined * found.per_host:
        yield Finding(
            "refused",
            f"The number of required GPUs ({world * data}) exceeds the total number of available GPUs in the "
            f"placement group ({joined * found.per_host}: {launch.ray_nodes} × ray start)",
        )
    elif not ray and -(-world // nodes) > found.per_host:
        yield Finding(
            "refused",
            f"World size ({world}) is larger than the number of available GPUs ({found.per_host}) in this node: "
            "for Ray set --distributed-executor-backend ray, for multiprocessing --nnodes",
        )
    elif not ray and nodes == 1 and launch.launch.get("data-parallel-size-local", data) * world > found.per_host:
        yield Finding(
            "refused",
            f"{data} data parallel ranks of {world} GPUs are started on this node of {found.per_host}: set "
            "--data-parallel-size-local, or --data-parallel-backend ray",
        )
    yield from _several_nodes(launch, found, container, joined)


def _several_nodes(launch: Launch, found: Machine, container: Container | None, nodes: int) -> Iterator[Finding]:
    """Yield what goes wrong between nodes before NCCL is asked."""
    ray = launch.launch.get("distributed-executor-backend") == "ray"
    if not ray and nodes > 1:
        if "master-addr" not in launch.launch:
            yield Finding("refused", "--master-addr is 127.0.0.1 by default: the nodes never meet")
        if launch.servers < nodes and container is None:
            yield Finding("warned", f"{launch.servers} of {nodes} nodes are started: each wants its command")
    if nodes > 1 and "VLLM_HOST_IP" not in launch.environment:
        yield Finding("warned", "VLLM_HOST_IP is not set: a node may name an address that others miss")
    size = launch.settings.get("tensor_parallel_size", 1)
    if nodes > 1 and size > found.per_host:
        text = f"tensor_parallel_size {size} is more than a node's {found.per_host} GPUs: all-reduces cross nodes"
        yield Finding("warned", text)


def _container_findings(launch: Launch, container: Container | None) -> Iterator[Finding]:
    """Yield what containers take from a server."""
    if container is None:
        return
    if not container.rdma_devices:
        yield Finding("silent", "containers see no /dev/infiniband: NCCL goes over sockets between nodes")
    elif not container.locked_memory:
        yield Finding("warned", "containers may not lock memory (IPC_LOCK): ibv_reg_mr fails for NCCL's buffers")
    if not container.shared_memory and _world(launch)[0] > 1:
        yield Finding("warned", "/dev/shm has 64 MiB, and workers want more (ipc: host, shm_size)")
    if not container.host_network and container.nodes > 1:
        yield Finding("silent", "containers have a network of their own: sockets and Ray go over it")


def _silent(serving: Serving, ready: Server) -> Iterator[Finding]:
    """Yield what vLLM decides without a word."""
    model, size = ready.served.model, serving.tensor_parallel_size
    if size > model.kv_heads and not model.latent:
        text = f"{model.kv_heads} KV heads on {size} ranks: each is held {size // model.kv_heads} times"
        yield Finding("silent", text)
    if model.latent and size > 1:
        yield Finding("silent", f"latent KV is not divided: all {size} ranks hold all of it")
    layers = ready.served.stage_layers()
    if len(set(layers)) > 1:
        yield Finding("silent", f"stages hold {', '.join(map(str, layers))} layers")
    if serving.enable_expert_parallel and serving.data_parallel_size == 1:
        yield Finding("silent", f"experts are spread over {size} tensor parallel ranks alone: no data parallelism")
    config = ready.scheduler
    if serving.async_scheduling is None and not config.async_scheduling:
        yield Finding("silent", "asynchronous scheduling is off, with this release, pipeline or drafts")
    if serving.max_model_len is None:
        yield Finding("silent", f"max_model_len is the model's: {config.max_model_len:,}")


def _network_lines(spec: Spec, serving: Serving) -> list[str]:
    """Return NCCL's lines about connections between nodes, of the group that crosses them with most bytes."""
    found = machine(spec)
    sizes = (serving.data_parallel_size, serving.pipeline_parallel_size, serving.tensor_parallel_size)
    if found.per_host >= serving.world and found.per_host % serving.world == 0:
        return []
    where = place(found.twin.fabric, sizes)
    nodes = _crossing(where)
    if nodes is None:
        return []
    settings = settings_here(spec, {"NCCL_DEBUG": "INFO"})
    communicator = initialise(found.twin, nodes, settings=settings)
    out = io.StringIO()
    processes = Processes(communicator)
    log = Log(settings, processes, out)
    scene = Scene(communicator, settings, Transports(communicator), processes, tuner(communicator))
    log.write(Connections(scene).everything())
    lines = [line for line in out.getvalue().splitlines() if " via NET/" in line]
    more = len(lines) - LINES
    return [*lines[:LINES], *([f"… {more} more such lines of {communicator.ranks} ranks"] if more > 0 else [])]


def _crossing(where: Placement) -> I32 | None:
    """Return a group that lies on several hosts: tensor parallel, data parallel, or two stages."""
    for group in (where.tensor_group(), where.data_group()):
        if where.hosts(group) > 1:
            return group
    for stage in range(where.rank_node.shape[1] - 1):
        pair: I32 = where.rank_node[0, stage : stage + 2, 0].copy()
        if where.hosts(pair) > 1:
            return pair
    return None
