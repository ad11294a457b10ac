"""Kubernetes manifests, and what their custom resources may hold.

Kinds and fields are those of the CRDs of Mellanox/network-operator (config/crd/bases) and of the SR-IOV network
operator, which refuse wrong types; fields that they do not know are dropped by the API server, which is a problem
here.
"""

from __future__ import annotations

from typing import Any

import yaml

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.configuration.readers.problems import Problems

_IMAGE = {"image": str, "repository": str, "version": str}
_FIELDS: dict[str, dict[str, Any]] = {
    "NicClusterPolicy": {
        "ofedDriver": {
            **_IMAGE,
            "env": list,
            "livenessProbe": dict,
            "readinessProbe": dict,
            "startupProbe": dict,
            "terminationGracePeriodSeconds": int,
            "upgradePolicy": dict,
            "forcePrecompiled": bool,
            "imagePullSecrets": list,
            "repoConfig": dict,
            "certConfig": dict,
            "containerResources": list,
        },
        "rdmaSharedDevicePlugin": {
            **_IMAGE,
            "config": str,
            "useCdi": bool,
            "imagePullSecrets": list,
            "containerResources": list,
        },
        "sriovDevicePlugin": {
            **_IMAGE,
            "config": str,
            "useCdi": bool,
            "imagePullSecrets": list,
            "containerResources": list,
        },
        "ibKubernetes": {
            **_IMAGE,
            "ufmSecret": str,
            "pKeyGUIDPoolRangeStart": str,
            "pKeyGUIDPoolRangeEnd": str,
            "periodicUpdateSeconds": int,
            "imagePullSecrets": list,
            "containerResources": list,
        },
        "secondaryNetwork": {"cniPlugins": dict, "multus": dict, "ipoib": dict, "ipamPlugin": dict},
        "nvIpam": {**_IMAGE, "enableWebhook": bool, "imagePullSecrets": list, "containerResources": list},
        "global": {"repository": str, "version": str, "imagePullSecrets": list},
        "nicFeatureDiscovery": dict,
        "docaTelemetryService": dict,
        "nicConfigurationOperator": dict,
        "spectrumXOperator": dict,
        "nodeAffinity": dict,
        "tolerations": list,
        "deploymentNodeAffinity": dict,
        "deploymentTolerations": list,
    },
    "MacvlanNetwork": {"networkNamespace": str, "master": str, "mode": str, "mtu": int, "ipam": str},
    "IPPool": {
        "subnet": str,
        "perNodeBlockSize": int,
        "gateway": str,
        "defaultGateway": bool,
        "exclusions": list,
        "perNodeExclusions": list,
        "routes": list,
        "nodeSelector": dict,
    },
    "IPoIBNetwork": {"networkNamespace": str, "master": str, "ipam": str},
    "HostDeviceNetwork": {"networkNamespace": str, "resourceName": str, "ipam": str},
    "SriovNetworkNodePolicy": {
        "resourceName": str,
        "nodeSelector": dict,
        "numVfs": int,
        "mtu": int,
        "isRdma": bool,
        "linkType": str,
        "deviceType": str,
        "nicSelector": dict,
        "priority": int,
        "eSwitchMode": str,
        "needVhostNet": bool,
        "vdpaType": str,
        "excludeTopology": bool,
        "externallyManaged": bool,
        "bridge": dict,
    },
}
_REQUIRED = {
    "SriovNetworkNodePolicy": ("nicSelector", "nodeSelector", "numVfs", "resourceName"),
    "IPPool": ("subnet", "perNodeBlockSize"),
}
_CHOICES = {
    ("MacvlanNetwork", "mode"): ("bridge", "private", "vepa", "passthru"),
    ("SriovNetworkNodePolicy", "linkType"): ("eth", "ETH", "ib", "IB"),
    ("SriovNetworkNodePolicy", "deviceType"): ("netdevice", "vfio-pci"),
}
MOST_DOCUMENTS = 10_000


def read_manifests(text: str, file: str) -> tuple[tuple[dict[str, Any], ...], Problems]:
    """Return the documents that have a kind. Raises ConfigError where none has, or it is not YAML."""
    problems, found = Problems(file), []
    try:
        for at, document in enumerate(yaml.load_all(text, Loader=_Loader)):
            if at >= MOST_DOCUMENTS:
                raise ConfigError(f"got more than {MOST_DOCUMENTS} documents", file=file)
            if isinstance(document, dict) and isinstance(document.get("kind"), str):
                found.append(document)
                _check(document, problems)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = None if mark is None else mark.line + 1
        raise ConfigError(f"is not YAML: {getattr(error, 'problem', error)}", file=file, line=where) from None
    except (RecursionError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        # the last four are how PyYAML fails on a tag whose text is no such value, as in `!!int` or `!!bool x`
        raise ConfigError(f"is not YAML that is taken here: {type(error).__name__}", file=file) from None
    if not found:
        raise ConfigError("got no document with a kind, expected Kubernetes manifests", file=file, line=1)
    return tuple(found), problems


class _Loader(yaml.SafeLoader):
    """YAML without aliases, which can be made to grow without end."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("got an alias, expected none")
        return super().compose_node(parent, index)


def _check(document: dict[str, Any], problems: Problems) -> None:
    kind = document["kind"]
    fields = _FIELDS.get(kind)
    if fields is None:
        return
    spec = document.get("spec")
    meta = document.get("metadata")
    name = str(meta.get("name", "")) if isinstance(meta, dict) else ""
    where = f"{kind}/{name}"
    if not name:
        problems.add("reference", where, "got no metadata.name")
    if not isinstance(spec, dict):
        problems.add("syntax", where, f"got spec {quoted(spec)}, expected fields")
        return
    for required in _REQUIRED.get(kind, ()):
        if required not in spec:
            problems.add("reference", f"{where}.spec", f"got no {required}, which is required")
    _types(spec, fields, f"{where}.spec", problems)
    for (of, field), choices in _CHOICES.items():
        if of == kind and field in spec and spec[field] not in choices:
            problems.add(
                "range", f"{where}.spec.{field}", f"got {quoted(spec[field])}, expected {', '.join(choices)}"
            )


def _types(data: dict[str, Any], fields: dict[str, Any], where: str, problems: Problems) -> None:
    for key, value in data.items():
        expected = fields.get(key)
        if expected is None:
            problems.add("syntax", f"{where}.{key}", "got a field that the resource has not: it would be dropped")
        elif isinstance(expected, dict):
            if isinstance(value, dict):
                _types(value, expected, f"{where}.{key}", problems)
            else:
                problems.add("syntax", f"{where}.{key}", f"got {quoted(value)}, expected fields")
        elif not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            problems.add("range", f"{where}.{key}", f"got {quoted(value)}, expected {expected.__name__}")
