"""Kubernetes manifests of NVIDIA's network operator, and of virtual functions where they are wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fabrictwin.configuration.model.hosts import Adapter, Host

GROUP, SRIOV = "mellanox.com/v1alpha1", "sriovnetwork.openshift.io/v1"
NAMESPACE = "nvidia-network-operator"
MOST_PODS = 63  # that share a device


def manifests(hosts: Mapping[str, Host]) -> tuple[dict[str, Any], ...]:
    """Return the operator's policy, a network a rail, and a pod that uses them. One host stands for all."""
    first = next((host for host in hosts.values() if host.adapters), None)
    if first is None:
        return ()
    rails = list(first.adapters.values())
    pools = [_pool(rail) for rail in rails]
    return (
        _policy(pools),
        *(_network(rail) for rail in rails),
        *(_functions(rail) for rail in rails),
        _pod(rails),
    )


def _pool(rail: Adapter) -> dict[str, Any]:
    return {
        "resourceName": f"rdma_{rail.netdev}",
        "rdmaHcaMax": MOST_PODS,
        "selectors": {"vendors": ["15b3"], "ifNames": [rail.netdev]},
    }


def _policy(pools: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": GROUP,
        "kind": "NicClusterPolicy",
        "metadata": {"name": "nic-cluster-policy"},
        "spec": {
            "rdmaSharedDevicePlugin": {
                "image": "k8s-rdma-shared-dev-plugin",
                "repository": "ghcr.io/mellanox",
                "version": "v1.5.2",
                "config": json.dumps({"periodicUpdateInterval": 300, "configList": pools}),
            },
            "secondaryNetwork": {
                "cniPlugins": {
                    "image": "plugins",
                    "repository": "ghcr.io/k8snetworkplumbingwg",
                    "version": "v1.5.0",
                },
                "multus": {
                    "image": "multus-cni",
                    "repository": "ghcr.io/k8snetworkplumbingwg",
                    "version": "v4.1.0",
                },
            },
        },
    }


def _ipam(rail: Adapter) -> str:
    number = int("".join(ch for ch in rail.netdev if ch.isdecimal()) or 0)
    return json.dumps({"type": "whereabouts", "range": f"192.168.{number}.0/24"})


def _network(rail: Adapter) -> dict[str, Any]:
    infiniband = rail.link.technology == "infiniband"
    spec: dict[str, Any] = {"networkNamespace": "default", "master": rail.netdev, "ipam": _ipam(rail)}
    if not infiniband:
        spec |= {"mode": "bridge", "mtu": rail.link.mtu_bytes}
    return {
        "apiVersion": GROUP,
        "kind": "IPoIBNetwork" if infiniband else "MacvlanNetwork",
        "metadata": {"name": f"rail-{rail.netdev}"},
        "spec": spec,
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
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "rdma-test",
            "annotations": {"k8s.v1.cni.cncf.io/networks": ",".join(f"rail-{rail.netdev}" for rail in rails)},
        },
        "spec": {
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
