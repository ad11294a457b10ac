"""A run from Python: a spec in, a result out."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.progress import silent
from fabrictwin.base.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.capture.recorder import CaptureRequest
    from fabrictwin.catalog.error_ranges import ErrorRange
    from fabrictwin.report.result import RunResult
    from fabrictwin.runs.folder import Clock


class Result:
    """What a run says: the step, where its time goes, what links carried, and the run folder."""

    def __init__(self, detail: RunResult, clock: Clock) -> None:
        self.detail = detail  # program, trace, fabric and all else that views are computed from
        self.clock = clock  # of the world outside: when it began, what it took

    @property
    def step_time(self) -> float:
        """Seconds that the step takes."""
        return self.detail.trace.end_ps / PS_PER_S

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The answer in figures, as in summary.json; units are in the keys."""
        from fabrictwin.report.summary import summary

        return summary(self.detail)

    @property
    def error_range(self) -> ErrorRange | None:
        """The range of the step by like steps that were held out; None of a captured job."""
        from fabrictwin.report.error_range import run_range

        return run_range(self.detail)

    @cached_property
    def breakdown(self) -> Table:
        """Parts of the step that add up to it, and what else was under way behind them."""
        rows = [
            (
                part["name"],
                part["time_ps"] / PS_PER_S,
                part["percent"],
                part["hidden_ps"] / PS_PER_S,
            )
            for part in self.summary["breakdown"]
        ]
        return Table.of_rows(("part", "time_s", "percent", "hidden_s"), rows)

    @cached_property
    def links(self) -> Table:
        """Directed links that carried anything, the busiest of the network first, then the insides of hosts."""
        import numpy as np

        from fabrictwin.fabric.fabric import NETWORK, LinkKind
        from fabrictwin.report.link_usage import KIND_NAMES, carrying, utilisation

        fabric, trace = self.detail.fabric, self.detail.trace
        ports = carrying(fabric, trace)
        used = utilisation(fabric, trace)
        inside = ~np.isin(fabric.port_kind[ports], NETWORK)
        rows = [
            (
                fabric.link_name(port),
                KIND_NAMES[LinkKind(int(fabric.port_kind[port]))],
                float(fabric.port_payload_bps[port]) / 1e9,
                int(trace.counters.tx_bytes[port]),
                float(used[port]) * 100,
            )
            for port in ports[np.lexsort((ports, -used[ports], inside))].tolist()
        ]
        return Table.of_rows(("link", "kind", "payload_gbps", "tx_bytes", "utilisation_percent"), rows)

    @cached_property
    def collectives(self) -> Table:
        """Communications by name: how many, their exposed part of the step, how long they were under way."""
        rows = [
            (one.name, one.category, one.operations, one.time_ps / PS_PER_S, one.busy_ps / PS_PER_S)
            for one in self.detail.collectives
        ]
        return Table.of_rows(("name", "category", "operations", "exposed_s", "under_way_s"), rows)

    @cached_property
    def communications(self) -> Table:
        """Communications by name and size: NCCL's choice, the time of one, exposed and hidden time of all."""
        from fabrictwin.report.communication_table import COLUMNS, rows

        return Table.of_rows(COLUMNS, rows(self.detail.job.program, self.detail.trace))

    def save(self, folder: str | Path | None = None) -> Path:
        """Write the run folder (by default the next free `runs/NAME`) and return it. Raises ConfigError."""
        from fabrictwin.runs.folder import write_folder

        chosen = None if folder is None else Path(folder)
        return write_folder(self.detail, chosen, self.clock)

    def __repr__(self) -> str:
        parts = sorted(self.detail.breakdown.shares, key=lambda share: -share.time_ps)[:2]
        step = max(1, self.detail.trace.end_ps)
        where = ", ".join(f"{part.name} {part.time_ps / step:.1%}" for part in parts)
        return f"<Result {self.detail.asked.name}: step {format_time(self.detail.trace.end_ps)}, {where}>"

    def __str__(self) -> str:
        from fabrictwin.report.terminal import block

        return block(self.detail, None)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p><code>{escape(repr(self)[1:-1])}</code></p>{self.breakdown._repr_html_()}"


def run(
    spec: Source,
    *,
    fidelity: str | None = None,
    seed: int | None = None,
    what_if: bool = False,
    capture: CaptureRequest | None = None,
    stage: Stage | None = None,
) -> Result:
    """Predict what a job gets on a cluster.

    `fidelity` (packet, flow, analytic) and `seed` go over the spec's. `what_if` also asks what changes would gain,
    in closed form. `stage` is told what is being done. Raises ConfigError for what is written wrong,
    SimulatedError for what the simulated hardware reports.
    """
    from fabrictwin.runs.execute import predict, with_overrides
    from fabrictwin.runs.folder import Clock

    started, clock = datetime.now(UTC), monotonic()
    asked = with_overrides(load(spec), fidelity=fidelity, seed=seed)
    detail = predict(asked, stage or silent, capture, what_if=what_if)
    return Result(detail, Clock(started, monotonic() - clock))
