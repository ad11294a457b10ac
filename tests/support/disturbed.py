"""A job on four boxes that something disturbs, and when it ends."""

from __future__ import annotations

from pathlib import Path

from support.specs import SMALL, boxes_job, write_spec

from fabrictwin.cluster.spec.spec import Spec, load_spec
from fabrictwin.runs.execute import predict

MS = 10**9


def disturbed_spec(folder: Path, *faults: str, fidelity: str = "flow", fold: str = "true", pp: int = 2) -> Spec:
    """Four boxes with these faults, each a line of a spec."""
    run = f"run: {{fidelity: {fidelity}, fold: {fold}, packet: {{timeout: 8}}}}\n"
    return load_spec(write_spec(folder, boxes_job(f"faults: [{', '.join(faults)}]\n{run}", pp=pp), SMALL))


def end(spec: Spec) -> int:
    """Predict a spec, and return when it ends, in picoseconds."""
    return predict(spec).trace.end_ps
