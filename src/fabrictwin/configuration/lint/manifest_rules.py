"""Rules about Kubernetes manifests: networks have their plugins and addresses, pods their devices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fabrictwin.base.whole_numbers import read_json
from fabrictwin.configuration.lint.findings import Finding
from fabrictwin.configuration.model.cluster import Configuration


def manifests(configuration: Configuration) -> Iterator[Finding]:
    """Pods ask for what plugins give, and may lock memory."""
    given = set()
    for manifest in configuration.manifests:
        if manifest.get("kind") == "NicClusterPolicy":
            given |= _resources(manifest)
    yield from _networks(configuration)
    yield from _devices(configuration)
    networks = {
        _name_of(m) for m in configuration.manifests if str(m.get("kind", "")).endswith(("Network", "Definition"))
    }
    for manifest in configuration.manifests:
        spec = manifest.get("spec")
        if manifest.get("kind") != "Pod" or not isinstance(spec, dict):
            continue
        limits = [_limits(c) for c in spec.get("containers") or () if isinstance(c, dict)]
        if any(limits):
            yield from _pod(manifest, spec, networks)
        for container in spec.get("containers") or ():
            if isinstance(container, dict):
                yield from _container(manifest, container, given)


def _interfaces(manifest: Mapping[str, Any]) -> list[str]:
    """Interfaces of hosts that a manifest names."""
    kind, spec = manifest.get("kind"), manifest.get("spec")
    if not isinstance(spec, dict):
        return []
    if kind == "SriovNetworkNodePolicy":
        selector = spec.get("nicSelector")
        named = selector.get("pfNames") if isinstance(selector, dict) else None
        return [str(name).partition("#")[0] for name in named] if isinstance(named, list) else []
    if kind == "NicClusterPolicy":
        plugin = spec.get("rdmaSharedDevicePlugin")
        listed = _parsed(plugin.get("config") if isinstance(plugin, dict) else None).get("configList")
        rows = (
            [row.get("selectors") for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
        )
        named = [row.get("ifNames") for row in rows if isinstance(row, dict)]
        return [str(name) for names in named if isinstance(names, list) for name in names]
    return [str(spec["master"])] if "master" in spec and kind in _NEEDS else []


def _devices(configuration: Configuration) -> Iterator[Finding]:
    """Manifests name interfaces that hosts have, and take them for what they are."""
    adapters = {a.netdev: a for host in configuration.hosts.values() for a in host.adapters.values() if a.netdev}
    for manifest in configuration.manifests:
        kind, spec = str(manifest.get("kind")), manifest.get("spec")
        where = f"{kind} {_name_of(manifest)}"
        named = _interfaces(manifest)
        for name in named if adapters else ():
            if name not in adapters:
                yield Finding(
                    "interface-unknown",
                    "error",
                    where,
                    f"interface {name[:20]}",
                    f"one of {', '.join(sorted(adapters))[:80]}",
                    "no host has it: pods that ask for it are never scheduled, or do not start",
                )
        if kind != "SriovNetworkNodePolicy" or not isinstance(spec, dict):
            continue
        if spec.get("isRdma") is False:
            yield Finding(
                "sriov-rdma",
                "error",
                where,
                "isRdma false",
                "true",
                "virtual functions have no RDMA device: NCCL takes sockets",
            )
        known = [adapters[name].link for name in named if name in adapters]
        kind_of = _LINK_TYPE[known[0].technology] if known else ""
        if known and str(spec.get("linkType", kind_of)).upper() != kind_of:
            yield Finding(
                "link-type",
                "error",
                where,
                f"linkType {str(spec['linkType'])[:10]}",
                kind_of,
                "the operator finds no such port",
            )
        mtu, most = spec.get("mtu"), known[0].mtu_bytes if known else None
        if isinstance(mtu, int) and most is not None and mtu > most:
            yield Finding(
                "mtu-differs",
                "error",
                where,
                f"mtu {mtu} of functions of a port with {most}",
                f"at most {most}",
                "packets larger than the port's are dropped",
            )


_LINK_TYPE = {"ethernet": "ETH", "infiniband": "IB"}
_NEEDS = {  # of a network's kind: what NicClusterPolicy has to deploy for it, below spec
    "IPoIBNetwork": ("secondaryNetwork", "ipoib"),
    "MacvlanNetwork": ("secondaryNetwork", "cniPlugins"),
    "HostDeviceNetwork": ("sriovDevicePlugin",),
}
_IPAM = {"nv-ipam": ("nvIpam",), "whereabouts": ("secondaryNetwork", "ipamPlugin")}


def _networks(configuration: Configuration) -> Iterator[Finding]:
    """Networks have the plugins that they need, and pools of addresses that are there."""
    policies = [m["spec"] for m in configuration.manifests if m.get("kind") == "NicClusterPolicy" and "spec" in m]
    pools = {_name_of(m) for m in configuration.manifests if m.get("kind") in ("IPPool", "CIDRPool")}
    for manifest in configuration.manifests:
        kind, spec = str(manifest.get("kind")), manifest.get("spec")
        if kind not in _NEEDS or not isinstance(spec, dict):
            continue
        ipam = _parsed(spec.get("ipam"))
        wanted = [_NEEDS[kind], *([_IPAM[str(ipam.get("type"))]] if str(ipam.get("type")) in _IPAM else [])]
        for path in wanted if policies else ():
            if not any(_within(policy, path) for policy in policies):
                yield Finding(
                    "plugin-missing",
                    "error",
                    f"{kind} {_name_of(manifest)}",
                    f"no {'.'.join(path)} in NicClusterPolicy",
                    "the plugin that the network needs",
                    "pods of the network do not start",
                )
        pool = ipam.get("poolName")
        if pools and ipam.get("type") == "nv-ipam" and pool not in pools:
            yield Finding(
                "pool-unknown",
                "error",
                f"{kind} {_name_of(manifest)}",
                f"pool {str(pool)[:60]}",
                f"one of {', '.join(sorted(pools))}",
                "pods of the network get no address",
            )


def _name_of(manifest: Any) -> str:
    meta = manifest.get("metadata")
    return str(meta.get("name", ""))[:60] if isinstance(meta, dict) else ""


def _within(data: Any, path: tuple[str, ...]) -> bool:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data is not None


def _parsed(text: object) -> dict[str, Any]:
    try:
        data = read_json(text) if isinstance(text, str) else {}
    except (json.JSONDecodeError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _resources(policy: Any) -> set[str]:
    spec = policy.get("spec")
    plugin = spec.get("rdmaSharedDevicePlugin") if isinstance(spec, dict) else None
    listed = _parsed(plugin.get("config") if isinstance(plugin, dict) else None).get("configList")
    return {f"rdma/{row.get('resourceName')}" for row in listed or () if isinstance(row, dict)}


def _pod(pod: Any, spec: dict[str, Any], known: set[str]) -> Iterator[Finding]:
    """A pod that asks for adapters has a network whose GIDs they have."""
    meta = pod.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, dict) else None
    text = notes.get("k8s.v1.cni.cncf.io/networks", "") if isinstance(notes, dict) else ""
    listed = str(text).strip()
    names = (
        []
        if listed.startswith("[")
        else [part.strip().split("/")[-1].partition("@")[0] for part in listed.split(",")]
    )
    for name in names:
        if name and known and name not in known:
            yield Finding(
                "network-unknown",
                "error",
                f"pod {_name_of(pod)}",
                f"network {name[:40]}",
                f"one of {', '.join(sorted(known))[:80]}",
                "the pod does not start",
            )
    if not listed and spec.get("hostNetwork") is not True:
        yield Finding(
            "pod-network",
            "warning",
            f"pod {_name_of(pod)}",
            "adapters, and neither hostNetwork nor a network of theirs",
            "one of the two",
            "RoCE's GIDs, and IPoIB, are not in the pod's network namespace",
        )


def _container(pod: Any, container: dict[str, Any], given: set[str]) -> Iterator[Finding]:
    name = _name_of(pod)
    context = container.get("securityContext")
    capabilities = context.get("capabilities") if isinstance(context, dict) else None
    added = capabilities.get("add") if isinstance(capabilities, dict) else None
    asked = _limits(container)
    if asked and "IPC_LOCK" not in (added if isinstance(added, list) else ()):
        yield Finding(
            "pod-memlock",
            "error",
            f"pod {name}",
            "RDMA without the capability IPC_LOCK",
            "IPC_LOCK",
            "registering memory fails",
        )
    for resource in asked:
        if given and resource not in given:
            yield Finding(
                "pod-resource",
                "error",
                f"pod {name}",
                resource[:80],
                f"one of {', '.join(sorted(given))}",
                "the pod is never scheduled",
            )


def _limits(container: dict[str, Any]) -> list[str]:
    """Shared adapters that a container asks for."""
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    return [str(key) for key in limits if str(key).startswith("rdma/")] if isinstance(limits, dict) else []
