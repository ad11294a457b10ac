"""One campaign: a run that trains for months, through its failures. A state machine without clock or I/O.

The wall clock is divided without rest, and into nothing else:

    training      work that was kept: what the run would take where nothing fails
    replayed      work that was lost with a failure and done again
    checkpoints   steps that wait for a checkpoint, or are slowed by its traffic
    detection     from a failure until somebody knows
    waiting       for a host, where no spare is left
    restarts      from there until the next step, the reading of the checkpoint included
    planned       interruptions that were announced: a checkpoint, and a restart

Checkpoints are taken after every `interval_s` of work, and count once storage (or the peer) has them. Silent
corruption goes on being trained on; when it is found, the run goes back to the last checkpoint before it.

Times are float seconds: months do not fit into 64 bits of picoseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, exp, inf, log, sqrt

from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.study.campaign.campaign_section import Campaign, Spell
from fabrictwin.study.campaign.failure_rates import Component, Failure

PARTS = ("replayed", "checkpoints", "detection", "waiting", "restarts", "planned")


@record
class Saving:
    """What a checkpoint costs and when it counts, in seconds."""

    stall_s: float  # steps wait
    write_s: float  # from there until it is safe; the next one can't be safe before
    read_s: float  # of a restart
    far_read_s: float = 0.0  # peer: from storage, where both hosts that held a part are gone
    persist_s: float = inf  # peer: work between checkpoints that storage has

    @property
    def peer(self) -> bool:
        return self.persist_s != inf


@record
class Policy:
    """Everything that decides what a failure costs."""

    components: tuple[Component, ...]
    campaign: Campaign
    saving: Saving
    hosts: int
    work_s: float  # what the whole run takes where nothing fails and nothing is saved
    step_s: float
    limit_s: float = inf  # of the wall clock: what is left then is not trained


@dataclass
class Ledger:
    """Where the time of one campaign went, in seconds; by component's name, or `checkpoint`."""

    work_s: float = 0.0  # that was kept
    wall_s: float = 0.0
    finished: bool = False  # all work was done before the time was over
    failures: Counter[str] = field(default_factory=Counter)
    spent: dict[str, defaultdict[str, float]] = field(
        default_factory=lambda: {part: defaultdict(float) for part in PARTS}
    )

    @property
    def goodput(self) -> float:
        """The share of the time that trained."""
        return self.work_s / self.wall_s

    def of_part(self, part: str) -> float:
        return sum(self.spent[part].values())

    def of_component(self, name: str) -> float:
        return sum(by.get(name, 0.0) for by in self.spent.values())


def drawn_s(spell: Spell, normal: float) -> float:
    """Return the seconds of a spell at a draw of the normal distribution."""
    if spell.median is None:
        return spell.mean / PS_PER_S
    deviation = sqrt(2 * log(spell.mean / spell.median))
    return spell.median / PS_PER_S * exp(deviation * normal)


class _Run:
    """The state of one campaign while it is played."""

    def __init__(self, policy: Policy, interval_s: float, failures: Iterator[Failure]) -> None:
        self.policy, self.interval_s = policy, interval_s
        self.failures = failures
        self.next = next(failures)
        self.now_s = 0.0
        self.saved_s = 0.0  # work that the last checkpoint holds
        self.spares = policy.campaign.spares
        self.repairs: list[float] = []  # when hosts come back
        self.corrupt: tuple[float, float, Failure] | None = None  # when it is found, the work it spoils, itself
        self.lost_hosts: set[int] = set()  # since the last checkpoint that counts
        self.from_storage = False  # a peer has not what the next restart reads
        # work at which the run went on, ascending: checkpoints lie whole intervals behind these
        self.begun_at = [0.0]
        self.ledger = Ledger()

    # ------------------------------------------------------------------ work

    def done_by(self, elapsed_s: float) -> tuple[float, int, float]:
        """(work done, checkpoints that count, work waited for) so long after the last (re)start."""
        saving = self.policy.saving
        left = self.policy.work_s - self.saved_s
        cycle = self.interval_s + saving.stall_s
        cycles, rest = divmod(elapsed_s, cycle)
        work = min(cycles * self.interval_s + min(rest, self.interval_s), left)
        counting = max(0, int((elapsed_s - saving.write_s) // cycle))
        return work, counting, elapsed_s - work

    def needed_s(self) -> float:
        """Seconds until all work is done and saved."""
        saving = self.policy.saving
        left = self.policy.work_s - self.saved_s
        return left + max(1, ceil(left / self.interval_s - 1e-9)) * saving.stall_s + saving.write_s

    def work_until(self, time_s: float) -> float:
        """Train until then and keep what checkpoints hold; returns the work that they do not."""
        work, counting, waited = self.done_by(time_s - self.now_s)
        kept = min(counting * self.interval_s, work)
        if counting:
            self.lost_hosts.clear()
        self.saved_s += kept
        self.ledger.spent["checkpoints"]["checkpoint"] += waited
        self.now_s = time_s
        return work - kept

    # ------------------------------------------------------------------ failures

    def take(self) -> Failure:
        failure, self.next = self.next, next(self.failures)
        return failure

    def component(self, failure: Failure) -> Component:
        return self.policy.components[failure.component]

    def strike(self, failure: Failure) -> None:
        """A failure while the job trains, at its time."""
        component = self.component(failure)
        self.ledger.failures[component.name] += 1
        if component.shows == "silent":
            spoiled = self.saved_s + self.done_by(failure.time_s - self.now_s)[0]
            found_s = failure.time_s + self.policy.campaign.detection.silent / PS_PER_S
            if self.corrupt is None:
                self.corrupt = (found_s, spoiled, failure)
            return
        if component.shows == "planned":
            self.pause(failure, component)
            return
        lost = self.work_until(failure.time_s) + self.fall_back(failure, component)
        self.ledger.spent["replayed"][component.name] += lost
        detection = self.policy.campaign.detection
        self.recover(failure, (detection.hang if component.shows == "hang" else detection.error) / PS_PER_S)

    def fall_back(self, failure: Failure, component: Component) -> float:
        """Work of saved checkpoints that is gone, too: a peer's, where host and peer are both lost. Seconds."""
        saving = self.policy.saving
        if not (saving.peer and component.replaces):
            return 0.0
        host = int(failure.host * self.policy.hosts)
        partners = {(host + 1) % self.policy.hosts, (host - 1) % self.policy.hosts} - {host}
        both = bool(partners & self.lost_hosts)
        self.lost_hosts.add(host)
        if not both and self.policy.hosts > 1:
            return 0.0
        return self.roll_back_to_storage(self.saved_s)

    def roll_back(self, to_s: float) -> float:
        """Go back to an older checkpoint; returns the saved work that it does not hold."""
        lost = max(0.0, self.saved_s - to_s)
        self.saved_s -= lost
        return lost

    def roll_back_to_storage(self, work_s: float) -> float:
        """Go back to what storage had of a run so far: a peer keeps the last checkpoint alone."""
        self.from_storage = True
        return self.roll_back(work_s // self.policy.saving.persist_s * self.policy.saving.persist_s)

    def discover(self) -> None:
        """Silent corruption is found while the job trains."""
        assert self.corrupt is not None
        found_s, spoiled, failure = self.corrupt
        name = self.component(failure).name
        lost = self.work_until(found_s)
        if self.policy.saving.peer:
            lost += self.roll_back_to_storage(spoiled)
        else:
            begun = max(work for work in self.begun_at if work <= spoiled)
            lost += self.roll_back(begun + (spoiled - begun) // self.interval_s * self.interval_s)
        self.ledger.spent["replayed"][name] += lost
        self.recover(failure._replace(time_s=found_s), 0.0)

    def pause(self, failure: Failure, component: Component) -> None:
        """An announced interruption: whole steps are saved, then the job restarts."""
        saving, step = self.policy.saving, self.policy.step_s
        unsaved = self.work_until(failure.time_s)
        whole = unsaved // step * step
        self.saved_s += whole
        self.lost_hosts.clear()
        self.ledger.spent["replayed"][component.name] += unsaved - whole
        self.spend("planned", component.name, saving.stall_s + saving.write_s)
        again = self.restart(failure, "planned", manual=False)
        if again is not None:
            self.recover(again, self.policy.campaign.detection.error / PS_PER_S)

    # ------------------------------------------------------------------ recovery

    def spend(self, part: str, name: str, seconds: float) -> None:
        self.ledger.spent[part][name] += seconds
        self.now_s += seconds

    def recover(self, failure: Failure, detection_s: float) -> None:
        """Be down from a failure on until the job trains again, or the time is over."""
        again: Failure | None = failure
        while again is not None and self.now_s < self.policy.limit_s:
            component = self.component(again)
            self.spend("detection", component.name, detection_s)
            if component.replaces:
                self.spend("waiting", component.name, self.wait_for_host(again))
            again = self.restart(again, "restarts", manual=True)
            detection_s = self.policy.campaign.detection.error / PS_PER_S

    def restart(self, failure: Failure, part: str, *, manual: bool) -> Failure | None:
        """Start the job; returns the failure that ends the attempt, if one does."""
        campaign, name = self.policy.campaign, self.component(failure).name
        saving = self.policy.saving
        took = drawn_s(campaign.restart, failure.restart)
        took += saving.far_read_s if self.from_storage else saving.read_s
        if manual and failure.manual < campaign.manual.chance:
            took += campaign.manual.time / PS_PER_S
        again = self.failure_before(self.now_s + took)
        if again is not None:
            self.spend(part, name, max(0.0, again.time_s - self.now_s))
            return again
        self.spend(part, name, took)
        self.from_storage = False
        while self.begun_at and self.begun_at[-1] >= self.saved_s:
            self.begun_at.pop()
        self.begun_at.append(self.saved_s)
        if self.corrupt is not None and self.saved_s <= self.corrupt[1]:
            self.corrupt = None  # what was spoiled is gone with the failure
        elif self.corrupt is not None and self.corrupt[0] < self.now_s:
            self.corrupt = (self.now_s, *self.corrupt[1:])  # found as soon as the job is back
        return None

    def failure_before(self, time_s: float) -> Failure | None:
        """The next failure that ends a restart under way; plans and corruption wait for a job that trains."""
        while self.next.time_s < time_s:
            failure = self.take()
            if (component := self.component(failure)).shows in ("silent", "planned"):
                continue
            self.ledger.failures[component.name] += 1
            return failure
        return None

    def wait_for_host(self, failure: Failure) -> float:
        """Take a spare; seconds until there is one."""
        if self.spares is None:
            return 0.0
        while self.repairs and self.repairs[0] <= self.now_s:
            heappop(self.repairs)
            self.spares += 1
        if not self.spares and not self.repairs:
            return drawn_s(self.policy.campaign.repair, failure.repair)  # of the very host
        wait = 0.0 if self.spares else max(0.0, heappop(self.repairs) - self.now_s)
        self.spares = max(0, self.spares - 1)
        heappush(self.repairs, self.now_s + wait + drawn_s(self.policy.campaign.repair, failure.repair))
        return wait

    def play(self) -> Ledger:
        """Run to the end of all work, or of the time."""
        limit_s = self.policy.limit_s
        while self.now_s < limit_s:
            end_s = self.now_s + self.needed_s()
            found_s = inf if self.corrupt is None else self.corrupt[0]
            if min(found_s, self.next.time_s, limit_s) >= end_s:
                left = self.policy.work_s - self.saved_s
                self.ledger.spent["checkpoints"]["checkpoint"] += self.needed_s() - left
                self.saved_s, self.now_s = self.policy.work_s, end_s
                self.ledger.finished = True
                break
            if limit_s <= min(found_s, self.next.time_s):
                under_way_s = self.work_until(limit_s)
                self.saved_s += under_way_s  # not lost
            elif found_s <= self.next.time_s:
                self.discover()
            else:
                self.strike(self.take())
        self.ledger.work_s, self.ledger.wall_s = self.saved_s, self.now_s
        return self.ledger


def play_campaign(policy: Policy, interval_s: float, failures: Iterator[Failure]) -> Ledger:
    """Return where the time of one campaign went, with a checkpoint after every `interval_s` of work."""
    return _Run(policy, interval_s, failures).play()


def mean_wall_s(ledgers: Sequence[Ledger]) -> float:
    return sum(ledger.wall_s for ledger in ledgers) / len(ledgers)


def mean_goodput(ledgers: Sequence[Ledger]) -> float:
    """Return the share of all time of some campaigns that trained."""
    return sum(ledger.work_s for ledger in ledgers) / sum(ledger.wall_s for ledger in ledgers)
