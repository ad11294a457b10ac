"""Write how to launch a spec's server: over Ray, node by node, or as a LeaderWorkerSet of Kubernetes."""

from __future__ import annotations

import json
import shlex

from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.serving.config.layout import machine
from fabrictwin.serving.config.section import Serving
from fabrictwin.serving.config.server import server, serving_section
from fabrictwin.serving.launch.command_line import as_flags
from fabrictwin.serving.launch.options import options

PORT = 29501
IMAGE = "vllm/vllm-openai"
IMAGES = {"0.12": "v0.12.0", "0.15": "v0.15.1", "0.19": "v0.19.0", "0.33": "v0.33.0"}
OWN = ("model", "release", "replicas", "router", "operators", "host", "benchmark", "speculative_config")


def recipe(spec: Spec, kind: str) -> str:
    """Return the recipe of one replica as text: `ray` and `nodes` as shell, `kubernetes` as YAML.

    `MODEL` stands for the model's name or folder, which a spec does not have. Raises ConfigError for what vLLM
    refuses.
    """
    serving = serving_section(spec)
    server(spec, serving)  # what vLLM refuses is not written
    per_host = machine(spec).per_host
    nodes = max(1, -(-serving.world // per_host))
    if nodes == 1 and kind != "kubernetes":
        return f"{_serve(serving)}\n"
    if kind == "ray":
        return _ray(serving, nodes)
    return _nodes(serving, nodes, per_host) if kind == "nodes" else _kubernetes(spec, serving, nodes, per_host)


def _serve(serving: Serving, *more: str) -> str:
    """Return the command, with what is not the release's default."""
    given = serving.model_dump(mode="json", exclude=set(OWN), exclude_defaults=True)
    if serving.data_parallel_size == 1:
        given.pop("all2all_backend", None)
    command, flags = "vllm serve MODEL", as_flags(given)
    if serving.moe_backend == "marlin" and "moe-backend" in options(serving.release):
        flags.append("--moe-backend marlin")
    elif serving.moe_backend == "marlin":
        command = f"VLLM_MXFP4_USE_MARLIN=1 {command}"
    if serving.speculative_config:
        drafts = serving.speculative_config.model_dump(mode="json", include={"method", "num_speculative_tokens"})
        flags.append(f"--speculative-config {shlex.quote(json.dumps(drafts))}")
    return " \\\n    ".join([command, *flags, *more])


def _ray(serving: Serving, nodes: int) -> str:
    backend = "--data-parallel-backend ray" if serving.data_parallel_size > 1 else ""
    more = [one for one in ("--distributed-executor-backend ray", backend) if one]
    return f"""# On the first node; HEAD is its address, and VLLM_HOST_IP each node's own.
export VLLM_HOST_IP=HEAD
ray start --head --port=6379
{"".join(_worker(node) for node in range(1, nodes))}# On the first node again:
{_serve(serving, *more)}
"""


def _worker(node: int) -> str:
    return f"""# On node {node}:
export VLLM_HOST_IP=NODE_{node}
ray start --address=HEAD:6379
"""


def _nodes(serving: Serving, nodes: int, per_host: int) -> str:
    """Return one command a node: workers of one engine, or engines of data parallel ranks."""
    parts = []
    world = serving.tensor_parallel_size * serving.pipeline_parallel_size
    for node in range(nodes):
        parts.append(f"# On {'the first node; HEAD is its address' if node == 0 else f'node {node}'}:")
        parts.append(f"export VLLM_HOST_IP={'HEAD' if node == 0 else f'NODE_{node}'}")
        if serving.data_parallel_size > 1 and world <= per_host:
            local = min(per_host // world, serving.data_parallel_size)
            more = [f"--data-parallel-size-local {local}", "--data-parallel-address HEAD"]
            more += [f"--data-parallel-rpc-port {PORT}"]
            more += [f"--data-parallel-start-rank {node * local}", "--headless"] if node else []
        else:
            more = [f"--nnodes {nodes}", f"--node-rank {node}", "--master-addr HEAD", f"--master-port {PORT}"]
            more += ["--headless"] if node else []
        parts.append(_serve(serving, *more))
    return "\n".join(parts) + "\n"


def _kubernetes(spec: Spec, serving: Serving, nodes: int, per_host: int) -> str:
    """Return a LeaderWorkerSet: RDMA devices, locked memory and /dev/shm in every container."""
    name = "".join(one if one.isalnum() else "-" for one in spec.name.lower()).strip("-") or "vllm"
    more = ("--distributed-executor-backend ray",) if nodes > 1 else ()
    command = _serve(serving, *more).replace(" \\\n    ", " ")
    head = f"ray start --head --port=6379 && {command}" if nodes > 1 else command
    worker = "ray start --address=$(LWS_LEADER_ADDRESS):6379 --block"
    templates = [("leaderTemplate", head)] + ([("workerTemplate", worker)] if nodes > 1 else [])
    gpus = per_host if nodes > 1 else serving.world
    return f"""apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {name}
spec:
  replicas: {serving.replicas}
  leaderWorkerTemplate:
    size: {nodes}
""" + "".join(_template(which, text, serving.release, gpus) for which, text in templates)


def _template(which: str, command: str, release: str, gpus: int) -> str:
    return f"""    {which}:
      spec:
        containers:
          - name: vllm
            image: {IMAGE}:{IMAGES[release]}
            command: [sh, -c, {json.dumps(command)}]
            env:
              - name: VLLM_HOST_IP
                valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}
            resources:
              limits: {{nvidia.com/gpu: "{gpus}", rdma/hca: "1"}}
            securityContext:
              capabilities: {{add: [IPC_LOCK]}}
            volumeMounts:
              - {{name: dshm, mountPath: /dev/shm}}
        volumes:
          - name: dshm
            emptyDir: {{medium: Memory, sizeLimit: 64Gi}}
"""
