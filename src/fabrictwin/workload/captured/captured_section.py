"""`workload.captured` of a spec: a captured job's file, on the spec's cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from fabrictwin import catalog
from fabrictwin.base.arrays import I32
from fabrictwin.base.records import record
from fabrictwin.base.units import Duration
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.host_placement import place
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.workload.captured.captured_file import read_captured
from fabrictwin.workload.captured.captured_job import CapturedJob, Collective
from fabrictwin.workload.job.job import slow_ranks
from fabrictwin.workload.job.rank_layout import Layout
from fabrictwin.workload.job.workload_section import Section


class CapturedWorkload(Section):
    """A captured job: its file, and the host's time to issue a kernel where compute is given as work."""

    captured: str
    launch: Duration = 5_000_000


@record
class PlacedCapture:
    """A captured job on the ranks that it was placed on."""

    captured: CapturedJob
    section: CapturedWorkload
    rank_node: I32
    slowdown: npt.NDArray[np.float64]  # [ranks]
    differs: npt.NDArray[np.bool_]  # [ranks] slow or late: not to be folded with the others
    gpu: str

    @property
    def layout(self) -> Layout:
        """All ranks as one unit, which meets within the step."""
        return Layout(1, self.captured.world, 1, width=self.captured.world)

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of one rank in the largest all-to-all; 0 where there is none."""
        sizes = [
            one.size_bytes
            for each in self.captured.classes
            for one in each.operations
            if isinstance(one, Collective) and one.kind == "all_to_all"
        ]
        return max(sizes, default=0)


def is_captured(spec: Spec) -> bool:
    """Return true where the spec's workload is a captured job."""
    return "captured" in spec.workload


def captured_path(spec: Spec) -> Path:
    """The file that the spec names, from the spec's own folder. Raises ConfigError."""
    return spec.folder / spec.validate_section("workload", CapturedWorkload).captured


def place_captured(spec: Spec, blueprint: Blueprint, fabric: Fabric) -> PlacedCapture:
    """The spec's captured job on the GPUs that its placement gives it. Raises ConfigError."""
    section = spec.validate_section("workload", CapturedWorkload)
    captured = read_captured(spec.folder / section.captured)
    order = place(blueprint, spec)
    gpus = [np.flatnonzero(fabric.node_host[fabric.gpu_node] == host) for host in order]
    available = sum(len(each) for each in gpus)
    if captured.world > available:
        message = f"got a job of {captured.world} ranks, expected at most the {available} GPUs of the cluster"
        raise spec.error("workload.captured", message)
    used = int(np.searchsorted(np.cumsum([len(each) for each in gpus]), captured.world)) + 1
    order = place(blueprint, spec, hosts=used)
    ranks = np.concatenate(gpus[:used])[: captured.world]
    types = {catalog.host(blueprint.hosts[h].type).gpu for h in order}
    if len(types) != 1:
        raise spec.error("placement", f"got hosts with {' and '.join(sorted(types))}, expected one type of GPU")
    slowdown, differs = slow_ranks(spec, blueprint, fabric, ranks)
    nodes = fabric.gpu_node[ranks].astype(np.int32)
    return PlacedCapture(captured, section, nodes, slowdown, differs, types.pop())
