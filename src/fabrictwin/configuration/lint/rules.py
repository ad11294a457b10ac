"""All rules together, over what files said and what in them was no value."""

from __future__ import annotations

from collections.abc import Iterable

from fabrictwin.configuration.lint import (
    adapter_rules,
    buffer_rules,
    host_rules,
    link_rules,
    manifest_rules,
    nccl_rules,
    scheduling_rules,
    subnet_rules,
    switch_rules,
)
from fabrictwin.configuration.lint.findings import Finding, Rule
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.readers.problems import Problem

RULES: tuple[Rule, ...] = (
    switch_rules.ports,
    switch_rules.classes,
    buffer_rules.headroom,
    buffer_rules.groups,
    buffer_rules.pools,
    buffer_rules.marks,
    switch_rules.watchdogs,
    link_rules.to_hosts,
    link_rules.between_switches,
    switch_rules.routing,
    switch_rules.down,
    adapter_rules.classes,
    adapter_rules.congestion,
    scheduling_rules.adapters,
    scheduling_rules.switches,
    adapter_rules.frames,
    adapter_rules.firmware,
    adapter_rules.access_control,
    host_rules.limits,
    host_rules.modules,
    host_rules.kernel,
    host_rules.containers,
    nccl_rules.nccl,
    host_rules.differing,
    subnet_rules.manager,
    subnet_rules.partitions,
    subnet_rules.policy,
    subnet_rules.scheduler,
    manifest_rules.manifests,
)
_EFFECT = {
    "range": ("value-range", "a value that it takes", "the value is refused, or means something else"),
    "reference": ("reference-missing", "a name that is defined", "the part that refers to it has no effect"),
    "conflict": ("files-disagree", "the same in all files", "which of them is in force depends on what runs last"),
    "twice": ("name-twice", "one of its own", "one of the two is taken for the other"),
    "syntax": ("not-understood", "the format's own words", "the line is refused or ignored"),
}


def lint(configuration: Configuration, problems: Iterable[Problem] = ()) -> list[Finding]:
    """Return what is wrong, errors first, in the order of rules."""
    found = [_of(problem) for problem in problems]
    for rule in RULES:
        found += rule(configuration)
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda finding: finding.severity != "error")


def _of(problem: Problem) -> Finding:
    rule, expected, effect = _EFFECT[problem.kind]
    got, _, wanted = problem.message.removeprefix("got ").partition(", expected ")
    return Finding(rule, "error", problem.key, got, wanted or expected, effect, problem.file, line=problem.line)
