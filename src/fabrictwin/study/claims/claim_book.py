"""All claims in order, as text, data and a page of the documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.progress import Stage, silent
from fabrictwin.runs.workers import in_order
from fabrictwin.study.claims import job_claims as jobs
from fabrictwin.study.claims import link_claims as links
from fabrictwin.study.claims import loss_claims as loss
from fabrictwin.study.claims import serving_claims as serving
from fabrictwin.study.claims import tcp_claims as sockets
from fabrictwin.study.claims import whatif_claims as whatif
from fabrictwin.study.claims.claim import Claim

CLAIMS: dict[str, Callable[[], Claim]] = {
    "latency": links.latency,
    "gpudirect": links.gpudirect,
    "tcp": sockets.tcp,
    "generations": links.generations,
    "late": jobs.late_gpu,
    "predictable": jobs.predictable,
    "loss": loss.lost_packet,
    "nvlink": links.nvlink,
    "without-rdma": serving.without_rdma,
    "ecn": links.standards,
    "switch": links.switch_and_adapter,
    "ipoib": sockets.ipoib,
    "a100": jobs.a100_memory,
    "distance": jobs.distance,
    "next": whatif.next_links,
}


def judge_all(only: tuple[str, ...] = (), stage: Stage = silent, workers: int | str | None = 1) -> list[Claim]:
    """Every claim, or those named, each with its experiment run anew by workers. Raises ConfigError."""
    for name in only:
        if name not in CLAIMS:
            raise ConfigError(
                f"got {name!r}, expected one of {', '.join(CLAIMS)}{did_you_mean(name, CLAIMS)}", key="NAME"
            )
    wanted = [name for name in CLAIMS if not only or name in only]
    return in_order(_judged, wanted, workers, stage, [f"testing {name}" for name in wanted])


def _judged(name: str) -> Claim:
    return CLAIMS[name]()


def as_text(found: list[Claim]) -> str:
    """For a terminal."""
    lines: list[str] = []
    for claim in found:
        lines += [f"{claim.key}: {claim.judgement}", f"  {claim.statement}"]
        left = max(len(what) for what, _ in claim.figures)
        lines += [f"    {what:{left}}  {value}" for what, value in claim.figures]
        lines += [f"  {claim.why}", ""]
    return "\n".join(lines)


def as_markdown(found: list[Claim]) -> str:
    """docs/claims.md."""
    lines = [
        "# Claims, tested",
        "",
        "Statements that are often made about these technologies, each with the experiment that tests it on the twin, what",
        "the twin found, and a judgement. `fabrictwin claims --write docs/claims.md` runs every experiment and writes this",
        "page; no figure in it was typed by hand. What rests on estimates of the [catalog](catalog.md) is marked there.",
        "",
        "| claim | judgement |",
        "|---|---|",
        *(f"| [{claim.statement}](#{claim.key}) | {claim.judgement} |" for claim in found),
    ]
    for claim in found:
        lines += [
            "",
            f"## {claim.key}",
            "",
            f"**{claim.statement}** {str(claim.judgement).capitalize()}.",
            "",
            f"*Experiment.* {claim.experiment}",
            "",
            "| | |",
            "|---|---|",
            *(f"| {what} | {value} |" for what, value in claim.figures),
            "",
            claim.why,
        ]
    return "\n".join(lines) + "\n"


def as_data(found: list[Claim]) -> list[dict[str, Any]]:
    """Plain data."""
    return [
        {
            "key": claim.key,
            "statement": claim.statement,
            "experiment": claim.experiment,
            "figures": dict(claim.figures),
            "judgement": str(claim.judgement),
            "why": claim.why,
        }
        for claim in found
    ]
