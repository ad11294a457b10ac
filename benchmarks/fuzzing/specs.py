"""Targets of `fuzz.py`: specs and what they name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fuzzing.target import Target, files, folder, job, of_file, of_text

_SMALL = (
    job("dgx-h100", "qm9700").encode()
    + b"""faults: [{link: host-0/mlx5_0, at: 1 ms, rate: 100 Gb/s}, {gpu: host-0/gpu0, slowdown: 1.5}]
jitter: {clocks: {deviation: 0.01}, slow: {chance: 0.1, slowdown: 1.5}}
nccl: {version: 2.21.5, NCCL_ALGO: Ring}
placement: {order: scattered, seed: 2}
run: {fidelity: packet, packet: {virtual_lanes: 2, buffer: 16 MiB}, seed: 3}
"""
)
_EXPLICIT = b"""schema: 1
cluster:
  technology: ethernet
  hosts: [{name: a, type: dgx-a100}, {name: b, type: dgx-a100}]
  switches: [{name: leaf-0, type: spectrum-4}, {name: leaf-1, type: spectrum-4}]
  cables:
    - a/mlx5_0 - leaf-0/1 ; 100 Gb/s ; 3 m
    - b/mlx5_0 - leaf-1/1 ; 100 Gb/s ; 3 m
    - leaf-0/5 - leaf-1/5 ; 400 Gb/s ; 20 m
"""


def _spec() -> Target:
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_spec

    def read(path: Path) -> None:
        spec = load_spec(path)
        hosts = getattr(spec.cluster, "hosts", None) or ()
        if sum(getattr(group, "count", 1) for group in hosts) <= 64:
            build(spec.cluster, spec=spec)

    return Target([_SMALL, _EXPLICIT, *files("examples/laptop.yaml")], of_file("spec.yaml", read))


def _workload() -> Target:
    from fabrictwin.base.yamlfile import read_yaml
    from fabrictwin.runs.execute import lower_workload  # noqa: F401 (its imports are part of the start)
    from fabrictwin.workload.job.workload_section import Workload

    samples = [
        sample[sample.index(b"  training:") :].split(b"\n\n")[0]
        for sample in files("examples/l*.yaml", "examples/mix*.yaml")
        if b"training:" in sample
    ]

    def read(data: bytes) -> None:
        from pydantic import ValidationError

        found, _ = read_yaml(data.decode("utf-8", "replace"), "workload")
        try:
            Workload.model_validate(found)
        except ValidationError as error:
            from fabrictwin.base.validation_errors import config_errors

            raise config_errors(error, Workload, data=found)[0] from None

    return Target(samples, read)


def _yaml() -> Target:
    from fabrictwin.base.yamlfile import read_yaml

    samples = [_SMALL, b"a: &x [1, 2]\nb: *x\nc: 'd'\n? e\n: |\n  text\n", b"- 1e3\n- 0x1F\n- ~\n- .inf\n- -5\n"]
    return Target(samples, lambda data: read_yaml(data.decode("utf-8", "replace"), "file"))


def _catalog() -> Target:
    from fabrictwin.catalog.answers import KINDS, read_entries

    samples = []
    for kind in KINDS:
        for text in files(f"src/fabrictwin/catalog/data/{kind}.yaml"):
            entries = re.split(rb"\n(?=[\w.-]+:)", text)
            entry = b"\n".join(entries[:2])
            samples.append(kind.encode() + b"\n" + entry)
    samples += [b"host\n" + text for text in files("examples/catalog/host.yaml")]

    def read(data: bytes) -> None:
        kind, _, text = data.decode("utf-8", "replace").partition("\n")
        read_entries(text, kind=kind if kind in KINDS else "host", file="own")

    return Target(samples, read)


def _prices() -> Target:
    from fabrictwin.catalog.price_book import price_book

    samples = [
        b"hosts:\n  dgx-h100: {price: '300,000 USD', power: 10200 W}\n",
        b"site: {electricity: 0.08 USD/kWh}\n",
    ]
    return Target(samples, of_file("prices.yaml", price_book))


def _presets() -> Target:
    from fabrictwin.study.compare.fabrics import own_presets

    samples = [
        b"mine:\n  like: infiniband-ndr\n  packet: {buffer: 16 MiB}\n  link_rate: 200 Gb/s\n",
        *files("src/fabrictwin/catalog/data/fabric.yaml"),
    ]
    return Target(samples, of_file("presets.yaml", own_presets))


def _huggingface() -> Target:
    from fabrictwin.workload.model.huggingface_families import load_model

    return Target(files("examples/models/*.json"), of_file("config.json", load_model))


def _edits() -> Target:
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.study.compare.curves import parse, with_value

    path = folder() / "edited.yaml"
    path.write_bytes(_SMALL)
    spec = load_spec(path)

    def read(text: str) -> None:
        key, values = parse(text)
        with_value(spec, key, values[0])

    samples = [
        b"cluster.hosts.count=8,16,32",
        b"run.seed=1",
        b"workload.training.parallel.tp=2,4",
        b"cluster.hosts[0].type=dgx-a100",
    ]
    return Target(samples, of_text(read))


SPECS: dict[str, Callable[[], Target]] = {
    "spec": _spec,
    "workload": _workload,
    "yaml": _yaml,
    "catalog": _catalog,
    "prices": _prices,
    "presets": _presets,
    "huggingface": _huggingface,
    "edits": _edits,
}
