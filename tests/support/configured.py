"""Configured clusters that tests share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fabrictwin.cluster.spec.spec import Spec, read_spec
from fabrictwin.configuration.policy.cluster_policy import Planned, configuration, plan
from fabrictwin.configuration.readers.recognise import ReadFiles, read_files
from fabrictwin.configuration.writers.files import write_files
from fabrictwin.configuration.writers.targets import files_of

ETHERNET = ("sonic", "host", "slurm", "k8s")
INFINIBAND = ("opensm", "host", "slurm", "k8s")


def spec_of(technology: str = "ethernet", *, hosts: int = 4, kind: str = "dgx-h100", **network: Any) -> Spec:
    """A spec of a generated cluster."""
    switch = {"ethernet": "spectrum-4", "infiniband": "qm9700"}[technology]
    section = {"technology": technology, "switch": switch, "topology": {"kind": "rail-optimised"}} | network
    return read_spec({"schema": 1, "cluster": {"hosts": {"type": kind, "count": hosts}, "network": section}})


@cache
def planned(technology: str = "ethernet", hosts: int = 4) -> Planned:
    """A planned cluster. Shared: do not change it."""
    return plan(spec_of(technology, hosts=hosts))


def write(of: Planned, folder: Path, targets: tuple[str, ...], *, os: str = "sonic") -> list[Path]:
    """Write targets below a folder."""
    paths = []
    for target in targets:
        made = configuration(of, target, os=os)  # type: ignore[arg-type]
        paths += write_files(files_of(made, target, opensm_folder=str(folder / "opensm")), folder)  # type: ignore[arg-type]
    return paths


def written(of: Planned, folder: Path, targets: tuple[str, ...], *, os: str = "sonic") -> ReadFiles:
    """Write targets below a folder and read them back."""
    write(of, folder, targets, os=os)
    return read_files([folder])
