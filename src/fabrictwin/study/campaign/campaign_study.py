"""A training run of months on one cluster: time to train, goodput, what is lost to what, how often to save.

The step is the twin's own, as `run` simulates it. Campaigns are then played through drawn failures (see
`study.campaign.campaign_run`), many of them; every interval between checkpoints that is tried meets the same ones.
Young's and Daly's intervals stand beside the best one found: they know no detection, no writing in the background
and no spares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import sqrt
from typing import Any

import numpy as np

from fabrictwin.base.progress import Stage, part, silent
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.runs.execute import Prepared, cluster_line, predict
from fabrictwin.runs.workers import in_order
from fabrictwin.study.campaign.campaign_run import (
    PARTS,
    Ledger,
    Policy,
    Saving,
    mean_goodput,
    mean_wall_s,
    play_campaign,
)
from fabrictwin.study.campaign.campaign_section import ASSUMED, Campaign, Spell
from fabrictwin.study.campaign.checkpoint_traffic import CheckpointTimes, checkpoint_times, saving_of
from fabrictwin.study.campaign.failure_rates import SECONDS_A_DAY, Component, FailureStream, components_of
from fabrictwin.study.study_heading import Heading

TRIED = 25  # intervals
RUNS_TO_TRY = 48
BLOCK_OF_RUNS = 24  # that one worker plays at a time
HOPELESS = 100  # times the work: who takes longer will not end


@record
class Interval:
    """One interval between checkpoints, in seconds of work, and the mean share of the time that trains."""

    seconds: float
    goodput: float


@record
class Turned:
    """Mean goodput where one input is half of what it is, and twice."""

    name: str
    half: float
    twice: float


@record
class CampaignResult:
    """What a study found. Times in seconds."""

    heading: Heading
    campaign: Campaign
    assumed: tuple[str, ...]  # parts of the section that the spec leaves to what is assumed
    gpus: int
    tokens_a_step: int
    step_s: float
    policy: Policy
    times: CheckpointTimes
    interval_s: float
    intervals: tuple[Interval, ...]  # that were tried, in order
    young_s: float
    daly_s: float
    ledgers: tuple[Ledger, ...]
    turned: tuple[Turned, ...]

    @property
    def components(self) -> tuple[Component, ...]:
        return self.policy.components

    def goodputs(self) -> list[float]:
        """Goodput of every campaign, ascending."""
        return sorted(ledger.goodput for ledger in self.ledgers)

    def percentiles(self, of: Sequence[float]) -> tuple[float, float, float]:
        """(p5, p50, p95)."""
        low, middle, high = (float(v) for v in np.percentile(np.array(of), [5, 50, 95]))
        return low, middle, high

    def mean_of_part(self, name: str) -> float:
        """Mean seconds of a campaign that go to one part of what is lost."""
        return sum(ledger.of_part(name) for ledger in self.ledgers) / len(self.ledgers)

    def mean_of_component(self, name: str) -> float:
        return sum(ledger.of_component(name) for ledger in self.ledgers) / len(self.ledgers)

    def mean_failures(self, name: str) -> float:
        return sum(ledger.failures[name] for ledger in self.ledgers) / len(self.ledgers)

    @property
    def wall_s(self) -> float:
        return mean_wall_s(self.ledgers)

    @property
    def mean_goodput(self) -> float:
        return mean_goodput(self.ledgers)

    @property
    def work_s(self) -> float:
        """Mean seconds of training that were kept."""
        return sum(ledger.work_s for ledger in self.ledgers) / len(self.ledgers)

    @property
    def tokens(self) -> float:
        """Mean tokens that were trained."""
        return self.work_s / self.step_s * self.tokens_a_step

    @property
    def between_failures_s(self) -> float:
        """Mean time between failures that were not planned, of the wall clock."""
        rate = sum(component.per_s for component in self.components if component.shows != "planned")
        return 1 / rate if rate else float("inf")


def section_of(spec: Spec) -> Campaign:
    """The spec's section, checked. Raises ConfigError."""
    return spec.validate_section("campaign", Campaign, None if spec.campaign else {})


def young_s(cost_s: float, between_s: float) -> float:
    """Return Young's interval between checkpoints (1974): sqrt(2 cost M)."""
    return sqrt(2 * cost_s * between_s)


def daly_s(cost_s: float, between_s: float) -> float:
    """Return Daly's interval of higher order (2006, equation 37)."""
    if cost_s >= 2 * between_s:
        return between_s
    share = cost_s / (2 * between_s)
    return sqrt(2 * cost_s * between_s) * (1 + sqrt(share) / 3 + share / 9) - cost_s


def devices_of(prepared: Prepared) -> dict[str, float]:
    """Devices of the job by kind; cables and switches by its share of the cluster's hosts that train."""
    fabric, blueprint = prepared.twin.fabric, prepared.twin.blueprint
    hosts = np.unique(fabric.node_host[prepared.job.rank_node])
    share = len(hosts) / max(1, sum(1 for host in blueprint.hosts if host.type))
    adapters = int(np.isin(fabric.node_host[fabric.nic_node], hosts).sum())
    return {
        "GPU": float(len(prepared.job.rank_node)),
        "host": float(len(hosts)),
        "adapter": float(adapters),
        "cable": len(blueprint.cables) * share,
        "switch": len(blueprint.switches) * share,
        "job": 1.0,
    }


def study(spec: Spec, *, workers: int | str | None = 1, stage: Stage = silent) -> CampaignResult:
    """Play the campaigns of a spec, by so many workers. Raises ConfigError."""
    campaign = section_of(spec)
    prepared, step_s = _simulated(spec, stage)
    assert prepared.job.work is not None
    tokens_a_step = prepared.job.work.tokens
    steps = _steps(spec, campaign, step_s, tokens_a_step)
    stage("playing a checkpoint")
    times = checkpoint_times(prepared, campaign.checkpoint, prepared.job.work.parameters)
    devices = devices_of(prepared)
    components = components_of(spec, campaign, devices)
    policy = Policy(
        components=components,
        campaign=campaign,
        saving=saving_of(campaign.checkpoint, times),
        hosts=int(devices["host"]),
        work_s=steps * step_s,
        step_s=step_s,
        limit_s=steps * step_s * HOPELESS if campaign.days is None else campaign.days * SECONDS_A_DAY,
    )
    seed = spec.run.seed if campaign.seed is None else campaign.seed
    between_s = 1 / max(1e-12, sum(c.per_s for c in components if c.shows != "planned"))
    some = range(min(campaign.runs, RUNS_TO_TRY))

    def play(policies: Sequence[tuple[Policy, float]], runs: range, doing: str, tell: Stage) -> list[list[Ledger]]:
        """Campaigns of each policy and interval, in blocks that workers share."""
        blocks = [runs[i : i + BLOCK_OF_RUNS] for i in range(0, len(runs), BLOCK_OF_RUNS)]
        items = [(one, seconds, block) for one, seconds in policies for block in blocks]
        played = in_order(partial(_play, seed), items, workers, tell, [doing] * len(items))
        step = len(blocks)
        return [list(chain(*played[i : i + step])) for i in range(0, len(items), step)]

    tried = _tried(policy, between_s)
    trying = play([(policy, seconds) for seconds in tried], some, "trying intervals", part(stage, 0.0, 0.4))
    intervals = [Interval(seconds, mean_goodput(ledgers)) for seconds, ledgers in zip(tried, trying, strict=True)]
    every = campaign.checkpoint.every
    chosen = (
        max(intervals, key=lambda one: one.goodput).seconds
        if every == "best"
        else _whole_steps(policy, every / PS_PER_S)
    )
    ledgers = play([(policy, chosen)], range(campaign.runs), "playing campaigns", part(stage, 0.4, 0.7))[0]
    if campaign.days is None and not all(ledger.finished for ledger in ledgers):
        message = (
            f"got failures every {between_s:,.0f} s, expected such that a run ends: "
            f"this one takes over {HOPELESS} times as long as without"
        )
        raise spec.error("campaign.failures", message)
    changed = _changed(spec, devices, policy, times)
    asked = [(one, _whole_steps(one, chosen)) for _, pair in changed for one in pair]
    goodputs = [mean_goodput(one) for one in play(asked, some, "changing inputs", part(stage, 0.7, 1.0))]
    turned = tuple(Turned(name, *goodputs[2 * i : 2 * i + 2]) for i, (name, _) in enumerate(changed))
    cost_s = max(policy.saving.stall_s, 1e-9)
    given = spec.campaign or {}
    return CampaignResult(
        heading=Heading(
            spec.name,
            cluster_line(prepared.twin.blueprint, prepared.twin.fabric),
            prepared.job.layout_line,
            spec.run.fidelity,
            seed,
        ),
        campaign=campaign,
        assumed=tuple(text for key, text in ASSUMED if not _is_given(given, key)),
        gpus=len(prepared.job.rank_node),
        tokens_a_step=tokens_a_step,
        step_s=step_s,
        policy=policy,
        times=times,
        interval_s=chosen,
        intervals=tuple(intervals),
        young_s=young_s(cost_s, between_s),
        daly_s=daly_s(cost_s, between_s),
        ledgers=tuple(ledgers),
        turned=turned,
    )


def _simulated(spec: Spec, stage: Stage) -> tuple[Prepared, float]:
    """(the job as it was prepared, the seconds of its step). Raises ConfigError."""
    kept: list[Prepared] = []

    def keep(prepared: Prepared) -> Prepared:
        kept.append(prepared)
        return prepared

    clean = predict(spec, stage, alter=keep)
    if clean.job.work is None:
        raise spec.error("workload", "got no training job, expected one: a campaign trains for months")
    return kept[0], clean.trace.end_ps / PS_PER_S


def _is_given(section: Any, key: str) -> bool:
    """Tell whether a section's plain data has a key with dots."""
    for name in key.split("."):
        if not isinstance(section, Mapping) or name not in section:
            return False
        section = section[name]
    return True


def _steps(spec: Spec, campaign: Campaign, step_s: float, tokens_a_step: int) -> float:
    """Steps to train. Raises ConfigError where the section does not say."""
    if campaign.steps is not None:
        return float(campaign.steps)
    if campaign.tokens is not None:
        return float(-(-campaign.tokens // tokens_a_step))
    if campaign.days is None:
        message = "expected how much is trained: tokens (15.6T), steps, or days of the calendar"
        raise spec.error("campaign", message)
    return float(-(-campaign.days * SECONDS_A_DAY // step_s))  # more than fits into them


def _whole_steps(policy: Policy, seconds: float) -> float:
    """The interval as whole steps, long enough for one checkpoint to be safe before the next."""
    least = max(seconds, policy.saving.write_s + policy.saving.stall_s, policy.step_s)
    return min(policy.work_s, -(-least // policy.step_s) * policy.step_s)


def _tried(policy: Policy, between_s: float) -> list[float]:
    """Intervals from the shortest that is possible to several times the time between failures."""
    shortest = _whole_steps(policy, 0.0)
    longest = max(shortest * 2, min(policy.work_s, 4 * between_s))
    ladder = np.geomspace(shortest, longest, TRIED)
    return sorted({_whole_steps(policy, float(seconds)) for seconds in ladder})


INPUTS: dict[str, Callable[[Campaign, float], Campaign]] = {
    "failure rates": lambda c, by: c.model_copy(update={"scale": c.scale * by}),
    "detection of errors": lambda c, by: _detection(c, "error", by),
    "detection of hangs": lambda c, by: _detection(c, "hang", by),
    "detection of silent corruption": lambda c, by: _detection(c, "silent", by),
    "restart": lambda c, by: c.model_copy(update={"restart": _times(c.restart, by)}),
    "manual restarts": lambda c, by: c.model_copy(
        update={"manual": c.manual.model_copy(update={"time": round(c.manual.time * by)})}
    ),
    "repair": lambda c, by: c.model_copy(update={"repair": _times(c.repair, by)}),
}


def _detection(campaign: Campaign, which: str, by: float) -> Campaign:
    times = campaign.detection
    changed = times.model_copy(update={which: round(getattr(times, which) * by)})
    return campaign.model_copy(update={"detection": changed})


def _times(spell: Spell, by: float) -> Spell:
    median = None if spell.median is None else round(spell.median * by)
    return spell.model_copy(update={"mean": round(spell.mean * by), "median": median})


def _play(seed: int, asked: tuple[Policy, float, range]) -> list[Ledger]:
    """Play some campaigns of one policy: every policy meets the same failures in its campaigns of one number."""
    policy, seconds, runs = asked
    return [play_campaign(policy, seconds, iter(FailureStream(policy.components, seed, run))) for run in runs]


def _changed(
    spec: Spec, devices: Mapping[str, float], policy: Policy, times: CheckpointTimes
) -> list[tuple[str, tuple[Policy, Policy]]]:
    """(input, the policy with half of it and with twice); storage changes what a checkpoint takes."""
    found = []
    for name, change in INPUTS.items():
        half, twice = (change(policy.campaign, by) for by in (0.5, 2.0))
        found.append((name, (_with(spec, devices, policy, half), _with(spec, devices, policy, twice))))
    slow, quick = (replace(policy, saving=_with_storage(policy, times, by)) for by in (0.5, 2.0))
    return [*found, ("speed of storage", (slow, quick))]


def _with(spec: Spec, devices: Mapping[str, float], policy: Policy, campaign: Campaign) -> Policy:
    return replace(policy, campaign=campaign, components=components_of(spec, campaign, devices))


def _with_storage(policy: Policy, times: CheckpointTimes, by: float) -> Saving:
    """Return what a checkpoint takes where storage is `by` times as quick, and the network as it is."""
    changed = replace(times, storage_write_s=times.storage_write_s / by, storage_read_s=times.storage_read_s / by)
    return saving_of(policy.campaign.checkpoint, changed)


def shares(found: CampaignResult) -> list[tuple[str, float]]:
    """(part, mean seconds of a campaign), training first."""
    return [("training", found.work_s), *((name, found.mean_of_part(name)) for name in PARTS)]
