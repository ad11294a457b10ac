"""From a spec's cluster to a blueprint: the one entry, whichever form the cluster was given in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.cluster_section import DiscoveredCluster, GeneratedCluster

if TYPE_CHECKING:
    from fabrictwin.cluster.blueprint import Blueprint
    from fabrictwin.cluster.spec.cluster_section import Cluster
    from fabrictwin.cluster.spec.spec import Spec


def build(cluster: Cluster, *, spec: Spec) -> Blueprint:
    """The blueprint of a spec's cluster. `spec` knows files, lines and folder. Raises ConfigError."""
    try:
        if isinstance(cluster, GeneratedCluster):
            from fabrictwin.cluster.generators.generate import generate

            return generate(cluster, spec.folder)
        if isinstance(cluster, DiscoveredCluster):
            from fabrictwin.cluster.importers.discovered import discover

            return discover(cluster, folder=spec.folder)
        from fabrictwin.cluster.generators.explicit import assemble

        return assemble(cluster)
    except ConfigError as error:
        if error.file is not None:
            raise  # about a line of another file
        raise spec.error(f"cluster.{error.key}" if error.key else "cluster", error.message) from None
