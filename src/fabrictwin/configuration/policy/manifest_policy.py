"""Kubernetes manifests of NVIDIA's network operator, and of virtual functions where they are wanted.

On InfiniBand pods have IPoIB interfaces of their own, with addresses of NVIDIA's IPAM plugin. On Ethernet a leaf's
port to a host is a subnet of two addresses (`addresses`), which leaves none for a pod: pods use the host's
network, and so the host's GIDs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fabrictwin.configuration.model.hosts import Adapter, Host

GROUP, SRIOV, IPAM = "mellanox.com/v1alpha1", "sriovnetwork.openshift.io/v1", "nv-ipam.nvidia.com/v1alpha1"
NAMESPACE = "nvidia-network-operator"
REPOSITORY, RELEASE = "nvcr.io/nvidia/mellanox", "network-operator-v25.7.0"
MOST_PODS = 63  # that share a device


def manifests(hosts: Mapping[str, Host]) -> tuple[dict[str, Any], ...]:
    """Return the operator's policy, a network a rail, and a pod that uses them. One host stands for all."""
    first = next((host for host in hosts.values() if host.adapters), None)
    if first is None:
        return ()
    rails = list(first.adapters.values())
    over = [(number, rail) for number, rail in enumerate(rails) if rail.link.technology == "infiniband"]
    return (
        _policy([_pool(rail) for rail in rails], ipoib=bool(over)),
        *(_addresses(number, rail) for number, rail in over),
        *(_network(rail) for _, rail in over),
        *(_functions(rail) for rail in rails),
        _pod(rails),
    )


def _pool(rail: Adapter) -> dict[str, Any]:
    return {
        "resourceName": f"rdma_{rail.netdev}",
        "rdmaHcaMax": MOST_PODS,
        "selectors": {"vendors": ["15b3"], "ifNames": [rail.netdev]},
    }


def _image(name: str) -> dict[str, Any]:
    return {"image": name, "repository": REPOSITORY, "version": RELEASE}


def _policy(pools: list[dict[str, Any]], *, ipoib: bool) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if ipoib:
        plugins = {"cniPlugins": "plugins", "multus": "multus-cni", "ipoib": "ipoib-cni"}
        more = {
            "nvIpam": _image("nvidia-k8s-ipam") | {"enableWebhook": False},
            "secondaryNetwork": {key: _image(name) for key, name in plugins.items()},
        }
    return {
        "apiVersion": GROUP,
        "kind": "NicClusterPolicy",
        "metadata": {"name": "nic-cluster-policy"},
        "spec": {
            "rdmaSharedDevicePlugin": {
                **_image("k8s-rdma-shared-dev-plugin"),
                "config": json.dumps({"periodicUpdateInterval": 300, "configList": pools}),
            },
            **more,
        },
    }


def _addresses(number: int, rail: Adapter) -> dict[str, Any]:
    """Return a rail's pool of addresses, of those that are shared (RFC 6598): 64 for pods of each host."""
    net = f"100.{64 + number}.0"
    return {
        "apiVersion": IPAM,
        "kind": "IPPool",
        "metadata": {"name": f"rail-{rail.netdev}", "namespace": NAMESPACE},
        "spec": {"subnet": f"{net}.0/16", "perNodeBlockSize": 64, "gateway": f"{net}.1"},
    }


def _network(rail: Adapter) -> dict[str, Any]:
    ipam = json.dumps({"type": "nv-ipam", "poolName": f"rail-{rail.netdev}"})
    return {
        "apiVersion": GROUP,
        "kind": "IPoIBNetwork",
        "metadata": {"name": f"rail-{rail.netdev}"},
        "spec": {"networkNamespace": "default", "master": rail.netdev, "ipam": ipam},
    }


def _functions(rail: Adapter) -> dict[str, Any]:
    infiniband = rail.link.technology == "infiniband"
    return {
        "apiVersion": SRIOV,
        "kind": "SriovNetworkNodePolicy",
        "metadata": {"name": f"rail-{rail.netdev}", "namespace": NAMESPACE},
        "spec": {
            "resourceName": f"sriov_{rail.netdev}",
            "nodeSelector": {"feature.node.kubernetes.io/pci-15b3.present": "true"},
            "numVfs": 1,
            "mtu": rail.link.mtu_bytes,
            "isRdma": True,
            "linkType": "IB" if infiniband else "ETH",
            "deviceType": "netdevice",
            "nicSelector": {"vendor": "15b3", "pfNames": [rail.netdev]},
        },
    }


def _pod(rails: list[Adapter]) -> dict[str, Any]:
    resources = {f"rdma/rdma_{rail.netdev}": 1 for rail in rails}
    over = [f"rail-{rail.netdev}" for rail in rails if rail.link.technology == "infiniband"]
    annotations = {"annotations": {"k8s.v1.cni.cncf.io/networks": ",".join(over)}} if over else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "rdma-test", **annotations},
        "spec": {
            **({} if over else {"hostNetwork": True}),
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "rdma-test",
                    "image": "mellanox/rping-test",
                    "command": ["sleep", "infinity"],
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                    "resources": {"requests": dict(resources), "limits": dict(resources)},
                }
            ],
        },
    }
