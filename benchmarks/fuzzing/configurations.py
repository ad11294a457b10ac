"""Targets of `fuzz.py`: configurations of switches, hosts, jobs and managers, and the rules on them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fabrictwin.base.errors import ConfigError
from fuzzing.target import Target, folder, of_text


def _configuration() -> Target:
    """Files of switches, hosts and jobs as the twin writes them: the name on the first line, then the file."""
    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.configuration.policy.cluster_policy import configuration, plan
    from fabrictwin.configuration.readers.recognise import read_files
    from fabrictwin.configuration.writers.files import write_files
    from fabrictwin.configuration.writers.targets import files_of

    samples = []
    for switch, technology, targets in (
        ("spectrum-4", "ethernet", ("sonic", "host", "slurm", "k8s")),
        ("qm9700", "infiniband", ("opensm",)),
    ):
        network = {"technology": technology, "switch": switch, "topology": {"kind": "rail-optimised"}}
        made = plan(
            read_spec({"schema": 1, "cluster": {"hosts": {"type": "dgx-h100", "count": 2}, "network": network}})
        )
        place = folder() / technology
        for target in targets:
            files = files_of(configuration(made, target, os="sonic"), target, opensm_folder=str(place / "opensm"))
            for path in write_files(files, place)[:12]:
                samples.append(str(path.relative_to(place)).encode() + b"\n" + path.read_bytes()[: 1 << 13])

    def read(data: bytes) -> None:
        name, _, rest = data.partition(b"\n")
        own = folder() / f"{os.getpid()}-site" / Path(name.decode("ascii", "replace")).name.replace("\0", "")[:80]
        own.parent.mkdir(exist_ok=True)
        if own.is_dir():
            own = own / "file"
        own.write_bytes(rest)
        read_files([own])
        own.unlink()

    return Target(samples, read)


def _of_kind(kind: str) -> Callable[[], Target]:
    """A reader of a configuration's format, and the rules on what it reads."""

    def make() -> Target:
        from fabrictwin.cluster.spec.spec import read_spec
        from fabrictwin.configuration.lint.rules import lint
        from fabrictwin.configuration.policy.cluster_policy import TARGETS, configuration, plan
        from fabrictwin.configuration.readers.recognise import kind_of, read_text_as
        from fabrictwin.configuration.writers.targets import files_of

        samples: dict[str, bytes] = {}
        for technology, switch in (("ethernet", "spectrum-4"), ("infiniband", "qm9700")):
            network = {"technology": technology, "switch": switch, "topology": {"kind": "fat-tree", "tiers": 2}}
            hosts = {"type": "pcie-box", "count": 2}
            of = plan(read_spec({"schema": 1, "cluster": {"hosts": hosts, "network": network}}))
            others = ("sonic", "nvue") if technology == "infiniband" else ("opensm",)
            for target in TARGETS:
                if target not in others:
                    for file in files_of(configuration(of, target), target):
                        if kind_of(file.text) == kind:
                            samples.setdefault(f"{technology}{file.path[:12]}", file.text.encode())

        def read(text: str) -> None:
            found, problems = read_text_as(kind, text, "hosts/host-0/file")
            lint(found, problems.found)

        return Target(list(samples.values())[:6], of_text(read))

    return make


def _recognised() -> Target:
    from fabrictwin.configuration.readers.recognise import kind_of

    samples = [b"network:\n  version: 2\n", b"nv set qos roce\n", b'{"PORT": {}}', b"SwitchName=a Nodes=b[0-3]\n"]
    return Target(samples, of_text(kind_of))


CONFIGURATIONS = (
    "sonic",
    "nvue",
    "slurm",
    "k8s",
    "netplan",
    "qos-policy",
    "partitions",
    "udev",
    "script",
    "nccl",
    "grub",
    "limits",
    "container",
    "opensm",
    "guids",
    "sysctl",
    "modules",
)


_QOS = b"""qos:
  trust: dscp
  lossless: [3]
  mtu: 9216
  ports: {leaf-0/1: {pfc: [3], ecn: {min: 100 KiB, max: 400 KiB, chance: 0.1}}}
"""


def _configure() -> Target:
    """A spec's `network.qos`, and the files of every target that follow from it."""
    from fabrictwin.base.yamlfile import read_yaml
    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.configuration.network_qos import with_network_qos
    from fabrictwin.configuration.policy.cluster_policy import TARGETS, configuration, plan
    from fabrictwin.configuration.writers.targets import files_of

    def spec_of(technology: str, qos: Any) -> Any:
        switch = {"ethernet": "spectrum-4", "infiniband": "qm9700"}[technology]
        network = {"technology": technology, "switch": switch, "topology": {"kind": "fat-tree", "tiers": 2}, **qos}
        return read_spec({"schema": 1, "cluster": {"hosts": {"type": "pcie-box", "count": 2}, "network": network}})

    spec = spec_of("ethernet", {})
    made = yaml.safe_dump(
        with_network_qos(spec, configuration(plan(spec), "sonic")).to_dict()["cluster"]["network"]["qos"]
    )

    def read(data: bytes) -> None:
        found, _ = read_yaml(data.decode("utf-8", "replace"), "network")
        if isinstance(found, dict) and set(found) <= {"qos"}:
            for technology, others in (("ethernet", ("opensm",)), ("infiniband", ("sonic", "nvue"))):
                with suppress(ConfigError):
                    asked = plan(spec_of(technology, found))
                    for target in TARGETS:
                        if target not in others:
                            files_of(configuration(asked, target), target)

    return Target([_QOS, ("qos:\n  " + made.replace("\n", "\n  ")).encode()], read)


def _rehearsed() -> Target:
    """Files of switches put onto a spec, as `lint --onto` does it."""
    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.configuration.network_qos import with_network_qos
    from fabrictwin.configuration.policy.cluster_policy import configuration, plan
    from fabrictwin.configuration.readers.recognise import kind_of, read_text_as
    from fabrictwin.configuration.writers.targets import files_of

    network = {"technology": "ethernet", "switch": "spectrum-4", "topology": {"kind": "fat-tree", "tiers": 2}}
    spec = read_spec({"schema": 1, "cluster": {"hosts": {"type": "pcie-box", "count": 2}, "network": network}})
    samples = []
    for target in ("sonic", "nvue", "host"):
        samples += [file.text.encode() for file in files_of(configuration(plan(spec), target), target)][:2]

    def read(text: str) -> None:
        kind = kind_of(text)
        if kind:
            with_network_qos(spec, read_text_as(kind, text, "switches/leaf-0/file")[0])

    return Target(samples, of_text(read))


CONFIGURED: dict[str, Callable[[], Target]] = {
    "configuration": _configuration,
    "configure": _configure,
    "lint-onto": _rehearsed,
    "configuration-kind": _recognised,
    **{f"configuration-{kind}": _of_kind(kind) for kind in CONFIGURATIONS},
}
