"""Rules about Kubernetes manifests: networks have their plugins and addresses, pods their devices."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    for manifest in configuration.manifests:
        spec = manifest.get("spec")
        if manifest.get("kind") != "Pod" or not isinstance(spec, dict):
            continue
        for container in spec.get("containers") or ():
            if isinstance(container, dict):
                yield from _container(manifest, container, given)


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


def _container(pod: Any, container: dict[str, Any], given: set[str]) -> Iterator[Finding]:
    name = _name_of(pod)
    context = container.get("securityContext")
    capabilities = context.get("capabilities") if isinstance(context, dict) else None
    added = capabilities.get("add") if isinstance(capabilities, dict) else None
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    asked = [str(key) for key in limits if str(key).startswith("rdma/")] if isinstance(limits, dict) else []
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
