"""Read how containers start vLLM: a Compose file, or a LeaderWorkerSet of Kubernetes.

What matters to the network is taken from them: RDMA devices, locked memory, shared memory, the host's network,
variables; and the commands, in the order leader first.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.yamlfile import read_yaml

KUBERNETES_RDMA = ("rdma/", "nvidia.com/mlnx", "nvidia.com/sriov", "vpc.amazonaws.com/efa")


@record
class Container:
    """Containers that a server runs in, all alike.

    Attributes:
        rdma_devices: They see /dev/infiniband.
        locked_memory: They may lock memory without a limit.
        shared_memory: /dev/shm is larger than a container's 64 MiB.
        host_network: They use the host's network namespace.
        environment: Variables.
        nodes: Containers that take a node each.
    """

    rdma_devices: bool
    locked_memory: bool
    shared_memory: bool
    host_network: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1


def read_containers(text: str, file: Path) -> tuple[str, Container]:
    """Return the shell commands of a file's containers, and what these may do.

    Raises ConfigError for what is neither a Compose file nor a LeaderWorkerSet.
    """
    data, _ = read_yaml(text, file)
    if isinstance(data, dict) and isinstance(data.get("services"), dict):
        return _compose(data["services"], file)
    if isinstance(data, dict) and data.get("kind") == "LeaderWorkerSet":
        return _leader_worker_set(data, file)
    raise ConfigError("expected the services of a Compose file or a LeaderWorkerSet", file=file)


def _words(value: Any) -> str:
    """Return a command as shell text, from text or a list of words."""
    if isinstance(value, list):
        return shlex.join(str(word) for word in value)
    return value if isinstance(value, str) else ""


def _pairs(value: Any) -> dict[str, str]:
    """Return variables from a mapping, a list of NAME=value, or Kubernetes' list of name and value."""
    if isinstance(value, dict):
        return {str(key): str(one) for key, one in value.items()}
    found = {}
    for one in value if isinstance(value, list) else ():
        if isinstance(one, dict) and "name" in one:
            found[str(one["name"])] = str(one.get("value", "set by Kubernetes"))
        elif isinstance(one, str):
            name, _, rest = one.partition("=")
            found[name] = rest
    return found


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _compose(services: Mapping[str, Any], file: Path) -> tuple[str, Container]:
    texts, found = [], []
    for service in map(_dict, services.values()):
        text = f"{_words(service.get('entrypoint'))} {_words(service.get('command'))}".strip()
        if "vllm" not in text and "ray" not in text:
            continue
        texts.append(text)
        privileged = service.get("privileged") is True
        devices = [str(one) for one in _list(service.get("devices"))]
        volumes = [str(one) for one in _list(service.get("volumes"))]
        limits = _dict(service.get("ulimits"))
        locked = limits.get("memlock")
        found.append(
            Container(
                rdma_devices=privileged or any("/dev/infiniband" in one for one in devices + volumes),
                locked_memory=privileged
                or "IPC_LOCK" in _list(service.get("cap_add"))
                or -1 in (locked, _dict(locked).get("hard")),
                shared_memory=service.get("ipc") == "host" or "shm_size" in service,
                host_network=service.get("network_mode") == "host",
                environment=_pairs(service.get("environment")),
            )
        )
    return "\n".join(texts), _least(found, len(found), file)


def _leader_worker_set(data: Mapping[str, Any], file: Path) -> tuple[str, Container]:
    template = _dict(_dict(data.get("spec")).get("leaderWorkerTemplate"))
    size = template.get("size")
    nodes = size if isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= 10_000 else 1
    texts, found = [], []
    for name in ("leaderTemplate", "workerTemplate"):
        pod = _dict(_dict(template.get(name)).get("spec"))
        volumes = [_dict(one) for one in _list(pod.get("volumes"))]
        for one in map(_dict, _list(pod.get("containers"))):
            text = _words([*_list(one.get("command")), *_list(one.get("args"))])
            security = _dict(one.get("securityContext"))
            privileged = security.get("privileged") is True
            limits = _dict(_dict(one.get("resources")).get("limits"))
            mounts = {str(_dict(mount).get("mountPath")) for mount in _list(one.get("volumeMounts"))}
            paths = [str(_dict(volume.get("hostPath")).get("path")) for volume in volumes]
            claimed = any(str(key).startswith(KUBERNETES_RDMA) for key in limits)
            added = _list(_dict(security.get("capabilities")).get("add"))
            texts += [text] * (nodes - 1 if name == "workerTemplate" else 1)
            found.append(
                Container(
                    rdma_devices=privileged or claimed or any("/dev/infiniband" in path for path in paths),
                    locked_memory=privileged or "IPC_LOCK" in added,
                    shared_memory="/dev/shm" in mounts,
                    host_network=pod.get("hostNetwork") is True,
                    environment=_pairs(one.get("env")),
                )
            )
    return "\n".join(texts), _least(found, nodes, file)


def _least(found: list[Container], nodes: int, file: Path) -> Container:
    """Return what every container may do: the one that may least decides for the server."""
    if not found:
        raise ConfigError("got no container that starts vLLM or Ray", file=file)
    return Container(
        rdma_devices=all(one.rdma_devices for one in found),
        locked_memory=all(one.locked_memory for one in found),
        shared_memory=all(one.shared_memory for one in found),
        host_network=all(one.host_network for one in found),
        environment={name: value for one in reversed(found) for name, value in one.environment.items()},
        nodes=nodes,
    )
