"""Small clusters that tests share."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec

if TYPE_CHECKING:
    from fabrictwin.twin import Twin


def blueprint(
    hosts: int = 4,
    kind: str = "dgx-a100",
    *,
    technology: str = "infiniband",
    switch: str = "qm8700",
    topology: dict[str, Any] | None = None,
    **network: Any,
) -> Blueprint:
    """A generated cluster; two tiers of a rail-optimised fat-tree unless told otherwise."""
    spec = read_spec(
        {
            "schema": 1,
            "name": "test",
            "cluster": {
                "hosts": {"type": kind, "count": hosts},
                "network": {
                    "technology": technology,
                    "switch": switch,
                    "topology": topology or {"kind": "rail-optimised"},
                    **network,
                },
            },
        }
    )
    return build(spec.cluster, spec=spec)


@cache
def dgx(hosts: int = 4) -> Twin:
    """DGX A100 hosts on a rail-optimised fabric. Shared: do not change it."""
    from fabrictwin.twin import Twin

    return Twin(blueprint(hosts))


@cache
def boxes(hosts: int = 8, technology: str = "infiniband", oversubscription: int = 1) -> Twin:
    """Plain hosts of one adapter on two tiers of leaves with four hosts each. Shared: do not change it."""
    from fabrictwin.twin import Twin

    shape = {"kind": "fat-tree", "tiers": 2, "leaf_down": 4, "oversubscription": oversubscription}
    switch = "qm8700" if technology == "infiniband" else "spectrum-4"
    return Twin(blueprint(hosts, "pcie-box", technology=technology, switch=switch, topology=shape))
