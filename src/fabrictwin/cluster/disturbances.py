"""What goes wrong while the job runs, found in a blueprint.

Cables that change at a time, switches that go off and come back, hosts with noise.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

from fabrictwin.base.capabilities import capabilities_of
from fabrictwin.base.errors import did_you_mean
from fabrictwin.base.records import record
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.faults import Jacks, find_faults
from fabrictwin.cluster.spec.fault_section import LinkFault, Noise, NoiseFault, StormFault, SwitchFault
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.kernel.codes import NEVER

MOST_CHANGES = 1_000_000
FOREVER = NEVER
_M64 = (1 << 64) - 1


@record
class CableChange:
    """Both directions of a cable change: their rate (0 down, None as built), or with `error_rate` bit errors."""

    time_ps: int
    cable: int  # into Blueprint.cables
    rate_bps: int | None = None
    error_rate: float | None = None


@record
class Reboot:
    """A switch goes off, and comes on again at `until_ps` (FOREVER: never). Its links are down meanwhile."""

    time_ps: int
    until_ps: int
    switch: int  # into Blueprint.switches
    cables: tuple[int, ...]

    def changes(self) -> list[CableChange]:
        """Return the changes of its cables."""
        down = [CableChange(self.time_ps, cable, 0) for cable in self.cables]
        up = [CableChange(self.until_ps, cable) for cable in self.cables if self.until_ps < FOREVER]
        return down + up


@record
class PauseStorm:
    """One end of a cable pauses the other on a priority, until `until_ps` (FOREVER: without end)."""

    time_ps: int
    until_ps: int
    cable: int
    end: int  # 0 or 1: the cable's a or b
    priority: int


@record
class HostNoise:
    """Noise on some hosts."""

    hosts: tuple[int, ...]
    noise: Noise
    seed: int


@record
class Disturbances:
    """Changes in order of time."""

    changes: tuple[CableChange, ...] = ()
    noise: tuple[HostNoise, ...] = ()
    reboots: tuple[Reboot, ...] = ()
    storms: tuple[PauseStorm, ...] = ()

    @property
    def all_changes(self) -> tuple[CableChange, ...]:
        """Changes of all cables, those of rebooting switches too."""
        return in_order([*self.changes, *(change for reboot in self.reboots for change in reboot.changes())])


def mix(seed: int, number: int) -> int:
    """64 bits that look random, the same for the same two numbers (SplitMix64's finaliser)."""
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _M64
    return x ^ (x >> 31)


def find_disturbances(blueprint: Blueprint, spec: Spec) -> Disturbances:
    """The spec's timed faults. Raises ConfigError for a name that is not there, or a time that fits nothing."""
    jacks = Jacks(blueprint)
    fidelity = spec.run.fidelity
    can = capabilities_of(fidelity)
    broken = {fault.cable for fault in find_faults(blueprint, spec)[0]}
    busy: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    changes: list[CableChange] = []
    noises: list[HostNoise] = []
    reboots: list[Reboot] = []
    storms: list[PauseStorm] = []
    for i, fault in enumerate(spec.faults):
        try:
            if isinstance(fault, NoiseFault):
                key = f"faults[{i}].hosts"
                seed = spec.run.seed if fault.noise.seed is None else fault.noise.seed
                hosts = _hosts(blueprint, fault.hosts)
                if any(set(hosts) & set(other.hosts) for other in noises):
                    raise ValueError("got hosts that already have noise by an earlier fault")
                noises.append(HostNoise(hosts, fault.noise, mix(seed, i)))
            elif isinstance(fault, SwitchFault):
                key = f"faults[{i}].switch"
                if not can.changes.under_way:
                    raise ValueError("got a switch that reboots at fidelity analytic, expected flow or packet")
                switch = jacks.switch(fault.switch)
                cables = tuple(cable for cable in jacks.cables_of(switch) if cable not in broken)
                until = FOREVER if fault.until is None else fault.until
                for cable in cables:
                    taken = busy.setdefault((cable, True), [])
                    if any(fault.at < end and start < until for start, end in taken):
                        raise ValueError(
                            f"got {fault.switch!r} off while an earlier fault changes one of its links"
                        )
                    taken.append((fault.at, until))
                reboots.append(Reboot(fault.at, until, switch, cables))
            elif isinstance(fault, StormFault):
                key = f"faults[{i}].pause_storm"
                storms.append(_storm(jacks, fault, can.packets))
                one = storms[-1]
                same = [
                    s for s in storms[:-1] if (s.cable, s.end, s.priority) == (one.cable, one.end, one.priority)
                ]
                if any(s.time_ps < one.until_ps and one.time_ps < s.until_ps for s in same):
                    raise ValueError(f"got {fault.pause_storm!r} in a storm at times of an earlier one")
            elif isinstance(fault, LinkFault) and fault.timed:
                key = f"faults[{i}].link"
                if not (can.changes.under_way if fault.error_rate is None else can.changes.bit_errors):
                    what = "a link that changes while the job runs" if fault.error_rate is None else "bit errors"
                    models = "flow or packet" if fault.error_rate is None else "packet"
                    raise ValueError(f"got {what} at fidelity {fidelity}, expected fidelity {models}")
                cable = jacks.cable(fault.link)
                if cable in broken:
                    raise ValueError(f"got {fault.link!r}, a link that another fault breaks from the start")
                built = int(blueprint.cables.rate_bps[cable])
                if fault.rate is not None and fault.rate > built:
                    key = f"faults[{i}].rate"
                    raise ValueError(f"got a rate above the {built / 1e9:g} Gb/s that the link was built for")
                spans = _spans(fault, mix(spec.run.seed if fault.seed is None else fault.seed, i))
                taken = busy.setdefault((cable, fault.error_rate is None), [])
                first, last = spans[0][0], spans[-1][1]
                if any(first < end and start < last for start, end in taken):
                    raise ValueError(f"got {fault.link!r} at times that overlap those of an earlier fault")
                taken.append((first, last))
                changes += _changes(cable, fault, spans)
                if len(changes) > MOST_CHANGES:
                    raise ValueError(f"got more than {MOST_CHANGES:,} changes of links, expected fewer")
        except ValueError as error:
            raise spec.error(key, str(error)) from None
    return Disturbances(in_order(changes), tuple(noises), tuple(reboots), tuple(storms))


def _storm(jacks: Jacks, fault: StormFault, packets: bool) -> PauseStorm:
    if jacks.blueprint.technology != "ethernet":
        raise ValueError("got a pause storm on InfiniBand, expected Ethernet: nothing else has pauses")
    if not packets:
        raise ValueError("got a pause storm without packets, expected fidelity packet")
    cable = jacks.cable(fault.pause_storm)
    node, port = jacks.jack(fault.pause_storm)
    cables = jacks.blueprint.cables
    end = 0 if (int(cables.a_node[cable]), int(cables.a_port[cable])) == (node, port) else 1
    return PauseStorm(fault.at, FOREVER if fault.until is None else fault.until, cable, end, fault.priority)


def in_order(changes: list[CableChange]) -> tuple[CableChange, ...]:
    """By time; where one ends as another begins, the beginning holds."""
    return tuple(sorted(changes, key=lambda c: (c.time_ps, c.cable, c.rate_bps is not None, bool(c.error_rate))))


def _spans(fault: LinkFault, seed: int) -> list[tuple[int, int]]:
    """From when to when the link is not as built."""
    start, until = fault.at or 0, FOREVER if fault.until is None else fault.until
    if fault.period is None or fault.down is None:
        return [(start, until)]
    times = fault.count or -(-(until - start) // fault.period)
    if times > MOST_CHANGES // 2:
        raise ValueError(f"got a link that flaps {times:,} times, expected at most {MOST_CHANGES // 2:,}")
    spans = []
    for k in range(times):
        at = start + k * fault.period
        if fault.jitter:
            at += mix(seed, k) * (fault.jitter + 1) >> 64
        if at < until:
            spans.append((at, min(at + fault.down, until)))
    return spans


def _changes(cable: int, fault: LinkFault, spans: list[tuple[int, int]]) -> list[CableChange]:
    found: list[CableChange] = []
    for start, end in spans:
        if fault.error_rate is not None:
            pair = CableChange(start, cable, None, fault.error_rate), CableChange(end, cable, None, 0.0)
        else:
            pair = CableChange(start, cable, fault.rate or 0), CableChange(end, cable)
        found += pair if end < FOREVER else pair[:1]
    return found


def _hosts(blueprint: Blueprint, patterns: tuple[str, ...]) -> tuple[int, ...]:
    names = [host.name for host in blueprint.hosts]
    if not patterns:
        return tuple(range(len(names)))
    found: set[int] = set()
    for pattern in patterns:
        here = [h for h, name in enumerate(names) if fnmatchcase(name, pattern)]
        if not here:
            raise ValueError(
                f"got {pattern!r}, which no host of the cluster matches{did_you_mean(pattern, names)}"
            )
        found.update(here)
    return tuple(int(h) for h in np.sort(list(found)))
