"""The search for a layout from Python."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fabrictwin.api.servers.serve import is_server
from fabrictwin.api.servers.server_plan import ServerObjective, ServerPlan, plan_server
from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.progress import silent
from fabrictwin.base.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.runs.layout_plan import Plan as Found


class Plan:
    """The fastest layouts of a job that fit, the best first."""

    def __init__(self, spec: Spec, detail: Found) -> None:
        self.spec, self.detail = spec, detail

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data, as `fabrictwin plan --json` prints it."""
        from fabrictwin.runs.layout_plan import plan_data

        return plan_data(self.detail)

    @cached_property
    def layouts(self) -> Table:
        """One row a layout: its sizes, its step, its memory, and what holds it back."""
        rows = [
            (
                one["layout"],
                one["micro_batch_size"],
                one["recompute"],
                one["step_time_ps"] / PS_PER_S,
                one["tokens_per_s_per_gpu"],
                one["mfu"],
                one["memory_bytes"],
                one["why"],
            )
            for one in self.data["layouts"]
        ]
        names = (
            "layout",
            "micro_batch_size",
            "recompute",
            "step_s",
            "tokens_per_s_per_gpu",
            "mfu",
            "memory_bytes",
            "why",
        )
        return Table.of_rows(names, rows)

    @property
    def best(self) -> Spec:
        """The spec with the fastest layout, ready for `run`."""
        from fabrictwin.runs.layout_plan import with_layout

        return with_layout(self.spec, self.detail.ranked[0].candidate)

    def write_best(self, path: str | Path) -> Path:
        """Write the spec with the fastest layout to a file and return it. Raises ConfigError."""
        from fabrictwin.runs.layout_plan import write_best

        write_best(self.detail, self.spec, Path(path))
        return Path(path)

    def json(self) -> str:
        """Return `data` as text."""
        from fabrictwin.runs.layout_plan import plan_json

        return plan_json(self.detail)

    def __repr__(self) -> str:
        from fabrictwin.workload.search.layout_search import layout_line

        best = self.detail.ranked[0]
        return (
            f"<Plan {self.detail.name}: {self.detail.found.considered:,} layouts, best "
            f"{layout_line(best.candidate.job)} at {format_time(best.step_ps)}>"
        )

    def __str__(self) -> str:
        from fabrictwin.runs.layout_plan import plan_text

        return plan_text(self.detail)

    def _repr_html_(self) -> str:
        return self.layouts._repr_html_()


def plan(
    spec: Source,
    *,
    top: int = 10,
    fidelity: str = "flow",
    headroom: float = 0.05,
    workers: int | str | None = 1,
    stage: Stage | None = None,
    **objective: Unpack[ServerObjective],
) -> Plan | ServerPlan:
    """Search layouts: of training, the fastest step that fits in memory; of a server, the fewest GPUs.

    Training: parallel sizes, micro-batches and recomputation are searched, and the best `top` are simulated at
    `fidelity` (flow, analytic); `headroom` is the share of a GPU's memory to keep free, `workers` processes that
    simulate at once. A server is to meet `ttft` and `tpot` at `rate` for `within` percent of its requests. Raises
    ConfigError where nothing fits.
    """
    from fabrictwin.runs import layout_plan

    given = load(spec)
    if is_server(given):
        return plan_server(given, objective, top=top, workers=workers, stage=stage or silent)
    for name, value in objective.items():
        if value is not None:
            raise given.error("workload", f"got no server, for which --{name} is")
    found = layout_plan.plan(
        given, top=top, fidelity=fidelity, stage=stage or silent, headroom=headroom, workers=workers
    )
    return Plan(given, found)
