"""Hold generated Kubernetes manifests against the schemas of their custom resources.

    python benchmarks/judge_manifests.py CRDS

CRDS is a folder with the CustomResourceDefinitions that NVIDIA's network operator installs, such as
`deployment/network-operator` of a checkout of github.com/Mellanox/network-operator (the SR-IOV operator's are
below its `charts`). They are not part of this project. Each manifest of `configure --for k8s` is validated against
the openAPIV3Schema of its group, version and kind, as an API server does, and fields that a schema does not name
are refused, which a server would drop without a word. Then each is spoilt in several ways, and must be refused.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import jsonschema
import yaml

from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.configuration.policy.cluster_policy import configuration, plan

Schemas = dict[tuple[str, str], dict[str, Any]]


def schemas_of(folder: Path) -> Schemas:
    """Schemas by (group/version, kind), of all definitions below a folder."""
    found: Schemas = {}
    for file in sorted(folder.rglob("*.yaml")):
        try:
            documents = [one for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one]
        except yaml.YAMLError:
            continue  # a chart's template is no YAML
        for one in documents:
            if isinstance(one, dict) and one.get("kind") == "CustomResourceDefinition" and "spec" in one:
                for version in one["spec"]["versions"]:
                    name = f"{one['spec']['group']}/{version['name']}", one["spec"]["names"]["kind"]
                    found[name] = version["schema"]["openAPIV3Schema"]
    return found


def unknown(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of fields that a schema does not name: an API server prunes them."""
    if isinstance(value, Mapping):
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        for key, inner in value.items():
            if key in properties:
                yield from unknown(inner, properties[key], f"{path}/{key}")
            elif isinstance(more, Mapping):
                yield from unknown(inner, more, f"{path}/{key}")
            elif more is not True:
                yield f"{path}/{key}: a field that the schema does not name"
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unknown(inner, schema.get("items", {}), f"{path}[{index}]")


def complaints(manifest: Mapping[str, Any], schemas: Schemas) -> list[str]:
    """All that an API server would refuse or drop."""
    schema = schemas.get((str(manifest["apiVersion"]), str(manifest["kind"])))
    if schema is None:
        return [f"no schema of {manifest['apiVersion']} {manifest['kind']}"]
    errors = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    # metadata is Kubernetes' own
    dropped = unknown({"spec": manifest["spec"]}, schema)
    return [error.message[:200] for error in errors] + list(dropped)


def spoilt(manifest: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Copies of a manifest, each wrong in one way."""
    for key, value in manifest["spec"].items():
        one = copy.deepcopy(dict(manifest))
        one["spec"][key] = [] if not isinstance(value, list) else 5
        yield f"{key} of another type", one
    one = copy.deepcopy(dict(manifest))
    one["spec"]["nonsense"] = True
    yield "a field that is not there", one


def spec(technology: str, kind: str, hosts: int) -> dict[str, Any]:
    """A spec to make manifests for."""
    return {
        "schema": 1,
        "cluster": {
            "hosts": {"type": kind, "count": hosts},
            "network": {
                "technology": technology,
                "topology": {"kind": "rail-optimised"},
                "switch": {"ethernet": "spectrum-4", "infiniband": "qm9700"}[technology],
            },
        },
    }


def main() -> int:
    """Judge the manifests of some clusters, and their spoilt copies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schemas", type=Path, help="a folder of custom resource definitions")
    schemas = schemas_of(parser.parse_args().schemas)
    good = bad = missed = refused = 0
    for technology in ("ethernet", "infiniband"):
        for kind in ("dgx-a100", "dgx-h100", "dgx-b200"):
            made = configuration(plan(read_spec(spec(technology, kind, 4))), "k8s")
            for manifest in made.manifests:
                if "/" not in str(manifest["apiVersion"]):
                    continue  # a pod, which Kubernetes itself defines
                found = complaints(manifest, schemas)
                good, bad = good + (not found), bad + bool(found)
                for line in found:
                    print(f"{technology} {kind} {manifest['kind']}: {line}")
                for how, one in spoilt(manifest):
                    if complaints(one, schemas):
                        refused += 1
                    else:
                        missed += 1
                        print(f"not refused: {manifest['kind']}: {how}")
    print(f"{len(schemas)} schemas; manifests accepted {good}, refused {bad}")
    print(f"spoilt copies refused {refused}, accepted {missed}")
    return 1 if bad or missed or not good else 0


if __name__ == "__main__":
    raise SystemExit(main())
