"""A diagnosis as a page that needs nothing else."""

from __future__ import annotations

from fabrictwin.diagnosis.diagnose import FAULTS, Diagnosis
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.report.page import page_environment, render, table, tile


def page(diagnosis: Diagnosis) -> str:
    """The page as text."""
    h = diagnosis.hardware
    shown = [one for one in diagnosis.findings if one.severity > Severity.NOTE]
    notes = [one for one in diagnosis.findings if one.severity == Severity.NOTE]
    counts = {severity: sum(one.severity == severity for one in shown) for severity in Severity}
    many = sum(not one.instead_of for one in shown)
    verdict = f"{many} cause{'s' * (many != 1)}" if diagnosis.verdict == FAULTS else diagnosis.verdict
    return render(
        page_environment("fabrictwin.report", "fabrictwin.diagnosis"),
        "diagnosis.html.j2",
        title="Diagnosis",
        footer="what a cluster printed, held against the twin",
        styles=["report.css", "diagnosis.css"],
        scripts=[],
        heading="What is wrong with this cluster",
        verdict=verdict,
        tiles=[
            tile("Errors", str(counts[Severity.ERROR]), "causes that stop or ruin a job"),
            tile("Warnings", str(counts[Severity.WARNING]), "causes that cost something"),
            tile("Open questions", str(counts[Severity.QUESTION]), "more files decide them"),
            tile("Files read", str(len(diagnosis.evidence.read)), f"{len(diagnosis.evidence.unread)} left alone"),
        ],
        hardware=""
        if h is None
        else f"{h.hosts} x {h.host}, {h.fabric}" + (f", NCCL {h.release}" if h.release else ""),
        findings=shown,
        notes=[f"{one.id}: {one.object}: {one.seen}" for one in notes],
        waiting=diagnosis.waiting[:40],
        collect=diagnosis.to_collect,
        files=table(
            ["file", "formats"], [[name, ", ".join(families)] for name, families in diagnosis.evidence.read[:200]]
        ),
        unread=[f"{name} {why}" for name, why in diagnosis.evidence.unread[:100]],
    )
