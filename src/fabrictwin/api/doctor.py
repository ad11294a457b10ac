"""The doctor from Python: files in, findings out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fabrictwin.diagnosis.diagnose import Diagnosis
    from fabrictwin.diagnosis.expectation.hardware import Hardware


def doctor(
    *paths: str | Path,
    hardware: str = "",
    hosts: int = 1,
    fabric: str = "infiniband",
    gpus_per_host: int = 0,
    release: str = "",
    twin: bool = True,
) -> Diagnosis:
    """Say what is wrong with a cluster, by what it printed.

    `paths` are files (`-` is the standard input), folders or archives, compressed or not. `hardware` names a host
    of the catalog (dgx-h100, ...), with the number of hosts, the fabric (infiniband or ethernet), GPUs in use and
    NCCL's release; without it, files tell. Without `twin` nothing is held against a simulation. Raises
    ConfigError.
    """
    from fabrictwin.diagnosis.diagnose import diagnose

    given = hardware_of(hardware, hosts=hosts, fabric=fabric, gpus_per_host=gpus_per_host, release=release)
    return diagnose(paths, hardware=given if hardware else None, twin=twin)


def hardware_of(
    name: str, *, hosts: int = 1, fabric: str = "infiniband", gpus_per_host: int = 0, release: str = ""
) -> Hardware | None:
    """Return hardware as the doctor knows it; None without a name. Raises ConfigError."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.diagnosis.expectation.hardware import Hardware

    if not name:
        if (hosts, fabric, gpus_per_host, release) != (1, "infiniband", 0, ""):
            raise ConfigError("expected the host of these figures too, such as dgx-h100", key="hardware")
        return None
    return Hardware.stated(name, hosts, fabric, gpus_per_host=gpus_per_host, release=release)
