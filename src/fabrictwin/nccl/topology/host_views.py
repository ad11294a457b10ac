"""A host of a cluster by name, shown: its matrix and its topology XML; what NCCL_TOPO_DUMP_FILE asks for."""

from __future__ import annotations

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, did_you_mean, unwritten
from fabrictwin.base.textfile import open_to_write
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.topology.detect import detect
from fabrictwin.nccl.topology.topo_matrix import topology_matrix
from fabrictwin.nccl.topology.topology_xml import to_xml

_GBPS = 8e9


def dump_topology(communicator: Communicator) -> None:
    """The first rank's host as it was detected, where NCCL_TOPO_DUMP_FILE asks for it. Raises ConfigError."""
    wanted = communicator.settings.topo_dump_file
    if not wanted:
        return
    view = communicator.view(0)
    try:
        with open_to_write(wanted) as file:
            file.write(to_xml(view.system, link_gbps=view.link_gbps or 1.0).encode("utf-8"))
    except OSError as error:
        raise unwritten(error, file=wanted, key="NCCL_TOPO_DUMP_FILE") from None


def host_matrix(fabric: Fabric, name: str = "") -> tuple[str, str]:
    """(matrix, XML) of a host, the first with GPUs where none is named. Raises ConfigError."""
    typed = [h for h in range(fabric.hosts) if fabric.templates[fabric.host_template[h]].type]
    if name:
        if name not in fabric.host_names:
            hint = did_you_mean(name, fabric.host_names)
            raise ConfigError(f"got {name!r}, expected a host of the cluster{hint}", key="--host")
        host = fabric.host_names.index(name)
        if host not in typed:
            raise ConfigError(f"got {name!r}, of which only the adapters are known", key="--host")
    else:
        with_gpus = np.unique(fabric.node_host[fabric.gpu_node])
        if not len(with_gpus):
            raise ConfigError("the cluster has no host with GPUs", key="--host")
        host = int(with_gpus[0])
    kind = fabric.templates[fabric.host_template[host]].gpu_type
    nvlink = catalog.gpu(kind).nvlink if kind else ""
    reckoned = catalog.nvlink(nvlink).kernel_rate.value / _GBPS if nvlink else 1.0
    system = detect(fabric, host)
    called = "XGMI" if nvlink.startswith("xgmi") else "NV"
    return topology_matrix(system, link_gbps=reckoned, link_name=called), to_xml(system, link_gbps=reckoned)
