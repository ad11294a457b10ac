"""All files of a target."""

from __future__ import annotations

from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.policy.cluster_policy import Target
from fabrictwin.configuration.writers import host, k8s, nvue, opensm, slurm, sonic
from fabrictwin.configuration.writers.files import WrittenFile


def files_of(
    configuration: Configuration, target: Target, *, opensm_folder: str = opensm.FOLDER
) -> list[WrittenFile]:
    """Return what a configuration is in a target's formats."""
    if target == "sonic":
        return [file for switch in configuration.switches.values() for file in sonic.files(switch)]
    if target == "nvue":
        return [file for switch in configuration.switches.values() for file in nvue.files(switch)]
    if target == "host":
        return [file for each in configuration.hosts.values() for file in host.files(each)]
    if target == "opensm":
        return [] if configuration.subnet is None else opensm.files(configuration.subnet, opensm_folder)
    if target == "slurm":
        return [] if configuration.slurm is None else slurm.files(configuration.slurm)
    return k8s.files(configuration.manifests)
