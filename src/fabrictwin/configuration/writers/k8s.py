"""Kubernetes manifests as YAML, each document under its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from fabrictwin.configuration.policy.reasons import reason
from fabrictwin.configuration.writers.files import WrittenFile

_REASON = {
    "NicClusterPolicy": "k8s_policy",
    "IPPool": "k8s_addresses",
    "IPoIBNetwork": "k8s_network",
    "SriovNetworkNodePolicy": "k8s_sriov",
    "Pod": "k8s_pod",
}


def files(manifests: Sequence[Mapping[str, Any]]) -> list[WrittenFile]:
    """Return a file a kind."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for manifest in manifests:
        kinds.setdefault(str(manifest["kind"]), []).append(manifest)
    return [WrittenFile(f"k8s/{kind.lower()}.yaml", text(of)) for kind, of in kinds.items()]


def text(manifests: Sequence[Mapping[str, Any]]) -> str:
    """Return documents of YAML."""
    parts = []
    for manifest in manifests:
        why = reason(_REASON[str(manifest["kind"])])
        parts.append(f"---\n# {why}\n{yaml.safe_dump(dict(manifest), sort_keys=False, width=110)}")
    return "".join(parts)
