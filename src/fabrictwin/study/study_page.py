"""Pages of studies: one frame, filled from a template of the study's own."""

from __future__ import annotations

from typing import Any

from fabrictwin.report.page import page_environment, render


def study_page(template: str, *, name: str, subject: str, finding: str, seed: int, **content: Any) -> str:
    """Return a page as text; `name` is whose study it is, `subject` goes to its title, `finding` to its head."""
    return render(
        page_environment("fabrictwin.report", "fabrictwin.study"),
        template,
        title=f"{name}: {subject}",
        footer=f"seed {seed}",
        styles=["report.css", "study.css"],
        scripts=["study.js"],
        heading=f"{name}: {finding}",
        **content,
    )
