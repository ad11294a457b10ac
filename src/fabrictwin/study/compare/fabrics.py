"""The same hosts and job on another fabric: a preset of the catalog laid over a spec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.units import format_rate
from fabrictwin.base.validation_errors import config_errors
from fabrictwin.base.yamlfile import read_yaml_file
from fabrictwin.catalog import FabricPreset
from fabrictwin.catalog.answers import names
from fabrictwin.cluster.spec.cluster_section import GeneratedCluster
from fabrictwin.cluster.spec.spec import Origin, Spec, read_spec

# what of a topology another switch may not have the ports for: it follows anew from hosts and switch
_OF_THE_SWITCH = ("radix", "leaf_down", "leaves", "spines", "pods", "cores")
_OWN = "your presets"


def own_presets(path: str | Path) -> dict[str, FabricPreset]:
    """Presets of a file: whole ones, or `like` one of the catalog with some keys changed. Raises ConfigError."""
    data, lines = read_yaml_file(path)
    if not isinstance(data, dict):
        raise ConfigError("expected presets by name", file=path, line=1)
    found = {}
    for name, raw in data.items():
        line = lines.get((name,), 1)
        if not isinstance(raw, dict):
            raise ConfigError(f"got {raw!r}, expected a preset", file=path, line=line, key=str(name))
        raw = dict(raw)
        base: dict[str, Any] = {"title": str(name)}
        if "like" in raw:
            like = raw.pop("like")
            if like not in names("fabric"):
                hint = did_you_mean(str(like), names("fabric"))
                raise ConfigError(
                    f"got {like!r}, expected one of {', '.join(names('fabric'))}{hint}",
                    file=path,
                    line=line,
                    key=f"{name}.like",
                )
            old = catalog.fabric(like)
            base |= {
                "title": f"{old.title}, changed",
                "technology": old.technology,
                "switch": old.switch,
                "link_rate": {"value": old.link_rate.text, "source": old.link_rate.source},
                "packet": dict(old.packet),
                "transport": old.transport,
            }
        packet = raw.pop("packet", {})
        if not isinstance(packet, Mapping):
            raise ConfigError(
                f"got {packet!r}, expected keys of run.packet", file=path, line=line, key=f"{name}.packet"
            )
        merged = {**base, **raw, "packet": {**base.get("packet", {}), **packet}, "name": str(name)}
        try:
            found[str(name)] = FabricPreset.model_validate(merged, context={"source": _OWN})
        except ValidationError as error:
            wrong = config_errors(error, FabricPreset, data=merged, file=path, lines=lines, path=(name,))
            raise wrong[0] from None
    return found


def preset(name: str, own: Mapping[str, FabricPreset]) -> FabricPreset:
    """A preset by name: one's own, or the catalog's. Raises ConfigError with the list and the nearest name."""
    if name in own:
        return own[name]
    known = (*own, *names("fabric"))
    if name not in known:
        raise ConfigError(
            f"got {name!r}, expected one of {', '.join(known)}{did_you_mean(name, known)}", key="--fabrics"
        )
    return catalog.fabric(name)


def with_fabric(spec: Spec, fabric: FabricPreset) -> Spec:
    """The spec with its hosts joined by another network of the same shape. Raises ConfigError."""
    if not isinstance(spec.cluster, GeneratedCluster):
        raise spec.error(
            "cluster", "got a cluster that is not generated, expected hosts and a network whose fabric can change"
        )
    if spec.qos is not None and spec.qos.ports:
        raise spec.error(
            "cluster.network.qos.ports",
            f"got rows for the ports of one fabric, expected none: the preset {fabric.name} says what ports do",
        )
    data = spec.to_dict()
    network = dict(data["cluster"]["network"])
    topology = {k: v for k, v in network["topology"].items() if k not in _OF_THE_SWITCH}
    network |= {
        "technology": fabric.technology,
        "switch": fabric.switch,
        "link_rate": format_rate(fabric.link_rate.value),
        "topology": topology,
    }
    # tables and trunks of the fabric that was there mean nothing on this one
    for key in ("trunk_rate", "routing"):
        network.pop(key, None)
    data["cluster"] = {**data["cluster"], "network": network}
    data["run"] = {**data["run"], "packet": fabric.packet}
    data["run"].pop("compare", None)
    return read_spec(data, Origin(spec.folder, spec.path))
