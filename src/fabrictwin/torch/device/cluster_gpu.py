"""The GPU of a spec's cluster, as programs of PyTorch are told of it."""

from __future__ import annotations

import json

from fabrictwin import catalog
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.host_placement import place
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.nccl.settings.spec_section import section_settings
from fabrictwin.nccl.settings.version import DEFAULT, version

GPU = "FABRICTWIN_TORCH_GPU"  # the modelled GPU, as JSON


def cluster_gpu(spec: Spec) -> tuple[int, int, dict[str, str]]:
    """(GPUs of the cluster, those of its first host, environment of a program). Raises ConfigError."""
    blueprint = build(spec.cluster, spec=spec)
    hosts = [catalog.host(blueprint.hosts[h].type) for h in place(blueprint, spec)]
    count = [host.nodes.gpu for host in hosts]
    gpu = catalog.gpu(hosts[0].gpu)
    major, minor = divmod(gpu.compute_capability.value, 10)
    settings = section_settings(spec)
    told = {
        "name": gpu.title,
        "memory_bytes": int(gpu.memory.value),
        "count": count[0],
        "capability": [major, minor],
        "multiprocessors": int(gpu.sm_count.value),
        "nccl": list(version(DEFAULT) if settings is None else settings.release),
    }
    return sum(count), count[0], {GPU: json.dumps(told)}
