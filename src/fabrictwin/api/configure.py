"""Configurations from Python: made from a spec, checked, and put back onto a spec to be rehearsed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.progress import part, silent

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.configuration.lint.findings import Finding
    from fabrictwin.configuration.model.cluster import Configuration
    from fabrictwin.configuration.readers.recognise import ReadFiles
    from fabrictwin.configuration.writers.files import WrittenFile


class ConfiguredFiles:
    """The files of a target, and the configuration that they say."""

    def __init__(self, target: str, configuration: Configuration, files: list[WrittenFile]) -> None:
        self.target, self.configuration, self._files = target, configuration, files

    @cached_property
    def files(self) -> dict[str, str]:
        """Texts by path, below the folder that they are to be written to."""
        return {file.path: file.text for file in self._files}

    def write(self, folder: str | Path) -> list[Path]:
        """Write all files below a folder and return their paths. Raises ConfigError."""
        from fabrictwin.configuration.writers.files import write_files

        return write_files(self._files, Path(folder))

    def __repr__(self) -> str:
        return f"<ConfiguredFiles for {self.target}: {len(self._files):,} files>"


def configure(
    spec: Source, target: str, *, switches: str = "sonic", folder: str = "/etc/opensm"
) -> ConfiguredFiles:
    """Return a cluster's configuration for sonic, nvue, opensm, host, slurm or k8s.

    `switches` says by which system's names hosts know the ports that they are plugged into; `folder` is where
    OpenSM's files will lie. Raises ConfigError.
    """
    from fabrictwin.configuration.policy.cluster_policy import TARGETS, configuration, plan
    from fabrictwin.configuration.writers.targets import files_of

    known = next((each for each in TARGETS if each == target), None)
    if known is None:
        hint = did_you_mean(target, TARGETS)
        raise ConfigError(f"got {target!r}, expected one of {', '.join(TARGETS)}{hint}", key="--for")
    made = configuration(plan(load(spec)), known, os=switches)
    return ConfiguredFiles(target, made, files_of(made, known, opensm_folder=folder))


class LintReport:
    """What is wrong with configurations, and what they say."""

    def __init__(self, read: ReadFiles, findings: list[Finding]) -> None:
        self.read, self.findings = read, findings

    @property
    def configuration(self) -> Configuration:
        """Return what the files say together."""
        return self.read.configuration

    @property
    def errors(self) -> list[Finding]:
        """Return the findings that break something."""
        return [finding for finding in self.findings if finding.severity == "error"]

    @cached_property
    def table(self) -> Table:
        """One row a finding."""
        names = ("severity", "rule", "object", "got", "expected", "effect", "file", "fix")
        return Table.of_rows(names, [tuple(getattr(f, name) for name in names) for f in self.findings])

    def data(self) -> dict[str, Any]:
        """Return plain data, as `fabrictwin lint --json` prints it."""
        return {"findings": [asdict(finding) for finding in self.findings], "unread": list(self.read.unread)}

    def json(self) -> str:
        """Return `data` as text."""
        return json.dumps(self.data(), indent=2) + "\n"

    def onto(self, spec: Source) -> Spec:
        """Return the spec with `network.qos` as the files have it, to be rehearsed. Raises ConfigError."""
        from fabrictwin.configuration.network_qos import with_network_qos

        return with_network_qos(load(spec), self.configuration)

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings]
        lines += [f"{path}: not read: none of the formats that are read here" for path in self.read.unread]
        errors = len(self.errors)
        said = self.configuration
        parts = [f"{len(said.switches)} switches", f"{len(said.hosts)} hosts"]
        parts += ["a subnet"] if said.subnet is not None else []
        parts += ["Slurm's topology"] if said.slurm is not None else []
        parts += [f"{len(said.manifests)} manifests"] if said.manifests else []
        lines.append(f"{', '.join(parts)}: {errors} errors, {len(self.findings) - errors} warnings")
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return f"<LintReport {len(self.errors)} errors, {len(self.findings) - len(self.errors)} warnings>"


def lint(*paths: str | Path, stage: Stage = silent) -> LintReport:
    """Read configurations, files or folders, and hold all rules on them. Raises ConfigError for what is none."""
    from fabrictwin.configuration.lint.rules import lint as judge
    from fabrictwin.configuration.readers.recognise import read_files

    read = read_files(_paths(paths), part(stage, 0.0, 0.9))
    stage("holding rules on them", 0.9)
    return LintReport(read, judge(read.configuration, read.problems))


def _paths(paths: Sequence[str | Path]) -> list[Path]:
    if not paths:
        raise ConfigError("got no file, expected configurations, or folders of them", key="lint")
    return [Path(path) for path in paths]
