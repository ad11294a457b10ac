"""Diagnose files: evidence, expectation, findings, verdict."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import FabrictwinError
from fabrictwin.base.progress import Stage, part, silent
from fabrictwin.base.records import record
from fabrictwin.diagnosis.alternatives import with_alternatives
from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Evidence
from fabrictwin.diagnosis.expectation.expected import Expected, expected_of
from fabrictwin.diagnosis.expectation.hardware import Hardware, recognised
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.hangs import hang_rules
from fabrictwin.diagnosis.readers.reading import read_paths
from fabrictwin.diagnosis.root_causes import ranked
from fabrictwin.diagnosis.rules import (
    bandwidth,
    counters,
    decisive_lines,
    driver_counters,
    hosts,
    ibdiagnet,
    nccl_inside,
    nccl_network,
    nccl_warnings,
    pairs,
    port_states,
    ports,
    priorities,
)
from fabrictwin.diagnosis.rules.inside import (
    gpu_state,
    gpu_tests,
    gpu_topology,
    kernel_events,
    nvidia_smi,
    nvlink_counts,
    pci_links,
    pci_status,
)
from fabrictwin.diagnosis.runs import run_notes, runs_of, with_runs

RULES: tuple[Rule, ...] = (
    *nccl_warnings.RULES,
    *nccl_network.RULES,
    *nccl_inside.RULES,
    *nvlink_counts.RULES,
    *pci_status.RULES,
    *gpu_state.RULES,
    *counters.RULES,
    *driver_counters.RULES,
    *port_states.RULES,
    *ports.RULES,
    *ibdiagnet.RULES,
    *priorities.RULES,
    *kernel_events.RULES,
    *nvidia_smi.RULES,
    *gpu_topology.RULES,
    *pci_links.RULES,
    *hosts.RULES,
    *gpu_tests.RULES,
    *bandwidth.RULES,
    *pairs.RULES,
    *hang_rules.RULES,
)
FAULTS, CLEAN, UNCLEAR = "faults", "clean", "not enough evidence"
NOTHING_READ = (
    "none of these files holds a format that is known: NCCL's log (NCCL_DEBUG=INFO), or `fabrictwin collect`"
)
_BARE = frozenset(("job.run", "ras.monitor", "ras.summary", "check.ran", "job.exit", "sonic.shown"))


@record
class Diagnosis:
    """Findings of files, root causes first, and the verdict."""

    verdict: str
    findings: tuple[Finding, ...]
    evidence: Evidence
    hardware: Hardware | None
    waiting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where nothing is wrong as far as these files show, 1 where something is."""
        return 1 if self.verdict == FAULTS else 0

    @property
    def roots(self) -> tuple[Finding, ...]:
        """Findings without what else the same words could mean."""
        return tuple(one for one in self.findings if not one.instead_of)

    @property
    def to_collect(self) -> tuple[str, ...]:
        """The files that would decide what these do not."""
        asked = [one.collect for one in self.findings if one.collect and one.severity <= Severity.QUESTION]
        return tuple(dict.fromkeys(asked)) or ((NOTHING_READ,) if self.verdict == UNCLEAR else ())

    def as_data(self) -> dict[str, Any]:
        """The diagnosis as plain data for JSON."""
        h = self.hardware
        return {
            "verdict": self.verdict,
            "hardware": None
            if h is None
            else {
                "host": h.host,
                "hosts": h.hosts,
                "fabric": h.fabric,
                "nccl": h.release,
                "confidence": h.confidence,
            },
            "findings": [one.as_data() for one in self.findings],
            "waiting": list(self.waiting),
            "collect": list(self.to_collect),
            "files": [{"file": name, "formats": list(families)} for name, families in self.evidence.read],
            "not_read": [{"file": name, "reason": why} for name, why in self.evidence.unread],
            "notes": list(self.notes),
        }


READING = 0.8  # of a diagnosis, where files are large; the rest is the twin's expectation and rules


def diagnose(
    paths: Iterable[str | Path], *, hardware: Hardware | None = None, twin: bool = True, stage: Stage = silent
) -> Diagnosis:
    """Read files and folders and find what is wrong.

    `hardware` overrides what files show; without `twin` nothing is held against a simulation. Raises ConfigError
    for a path that is not there.
    """
    evidence = read_paths(paths, part(stage, 0.0, READING))
    stage("holding it against the twin" if twin else "looking for causes", READING)
    return judged(evidence, hardware=hardware, twin=twin)


def judged(evidence: Evidence, *, hardware: Hardware | None = None, twin: bool = True) -> Diagnosis:
    """Find what is wrong by evidence."""
    notes: list[str] = []
    shown = hardware if hardware is not None else recognised(evidence)
    expected: Expected | None = None
    if shown is not None and twin and _worth_expecting(evidence):
        try:
            expected = expected_of(shown)
            _ = expected.channels  # a cluster that cannot be built says so here
        except FabrictwinError as error:
            expected = None
            notes.append(f"no expectation of {shown.host}: {error}")
    case = Case(evidence, expected)
    named = [one for rule in RULES for one in rule(case)]
    findings = with_alternatives(ranked([*named, *decisive_lines.findings(case, named)]), evidence)
    runs = runs_of(evidence)
    notes += run_notes(findings, runs)
    findings = with_runs(findings, runs)
    return Diagnosis(
        verdict=_verdict(findings, evidence),
        findings=tuple(findings),
        evidence=evidence,
        hardware=shown,
        waiting=tuple(hang_rules.waiting_lines(case)),
        notes=tuple(notes),
    )


def _worth_expecting(evidence: Evidence) -> bool:
    """Return true where files hold something of NCCL to hold against the twin."""
    return bool(evidence.of("bench.row", "nccl.channels", "nccl.way", "nccl.hcas", "nccl.gdr"))


def _verdict(findings: list[Finding], evidence: Evidence) -> str:
    worst = max((one.severity for one in findings), default=Severity.NOTE)
    if worst >= Severity.WARNING:
        return FAULTS
    if worst == Severity.QUESTION or not evidence.read:
        return UNCLEAR
    # only a banner or a head was read
    return (
        CLEAN
        if set(evidence.kinds()) - _BARE or evidence.of("ras.summary", "ras.monitor", "sonic.shown")
        else UNCLEAR
    )
