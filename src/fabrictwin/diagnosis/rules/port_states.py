"""States of ports: without a link, without a subnet manager, and which of those without a link should have one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact, Subject
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported

MANY_ALIKE = 4
DIGITS = frozenset("123456789abcdef")


def last(case: Case, kind: str) -> dict[Subject, Fact]:
    return {fact.subject: fact for fact in case.of(kind)}


def _plain(fact: Fact, part: int = 0) -> str:
    """A physical state without what sets the tools' spellings apart: LinkUp of ibstat, LINK_UP of rdma."""
    return str(fact.parts[part]).lower().replace("_", "")


# by ibstat, by rdma, by the kernel's files
_TRYING = ("polling", "sleep", "linkerrorrecovery", "linkerrorrecover", "portconfigurationtraining", "phytest")


def states(case: Case) -> Iterator[Finding]:
    """Ports without link, or without a subnet manager."""
    state, physical = last(case, "hca.state"), last(case, "hca.physical")
    layer, lid = last(case, "hca.layer"), last(case, "hca.sm-lid")
    ethernet = {about for about, fact in layer.items() if "ethernet" in fact.text.lower()}
    linked = {about for about, fact in physical.items() if _plain(fact) == "linkup"}
    # a virtual function that no manager has set up stays down on a link that is trained
    unmanaged = ("init", "down")
    no_manager = [
        fact
        for about, fact in state.items()
        if about not in ethernet and fact.text.lower().startswith(unmanaged if about in linked else unmanaged[:1])
    ]
    if no_manager:
        about = no_manager[0].subject
        yield found(
            "no-subnet-manager",
            no_manager,
            f"State: {no_manager[0].text}" + (f", SM lid {lid[about].value}" if about in lid else ""),
            "Active",
            0.95,
        )
    yield from reported("no-subnet-manager", case.of("sm.missing"), "{text}", "state 3 SMINFO_MASTER", 0.85)
    down = [fact for fact in state.values() if fact.text.lower().startswith("down") and fact not in no_manager]
    nameless = {fact.subject.device for fact in case.of("hca.guid") if not set(fact.text) & DIGITS}
    yield from reported(
        "virtual-function",
        [fact for fact in down if fact.subject.device in nameless],
        "node GUID of zeros, port {text}",
        "a GUID that the host gave the function",
        0.88,
    )
    yield from _down(case, state, down)
    alone = [
        fact for about, fact in physical.items() if about not in state and _plain(fact) in (*_TRYING, "linkdown")
    ]
    yield from reported("port-down", alone, "physical state {text}", "LinkUp", 0.8)
    armed = [
        fact for fact in state.values() if fact.text.lower().startswith("arm") and fact.subject not in ethernet
    ]
    yield from reported("no-subnet-manager", armed, "State: {text}", "Active", 0.7)
    lost = [fact for fact in case.of("port.state") if _plain(fact, 1).startswith("linkerrorrecover")]
    yield from reported("link-errors", lost, "physical state {1}", "LinkUp", 0.8)
    waiting = [
        fact
        for fact in case.of("port.state")
        if str(fact.parts[0]) in ("Init", "Initialize", "Initialized", "Armed")
    ]
    yield from reported("no-subnet-manager", waiting, "port {0}", "Active", 0.8)


def _down(case: Case, state: dict[Subject, Fact], down: list[Fact]) -> Iterator[Finding]:
    """Ports without a link that should have one."""
    physical, layer, lid = last(case, "hca.physical"), last(case, "hca.layer"), last(case, "hca.sm-lid")
    up = [about for about, fact in state.items() if fact.text.startswith("Active")]
    trying = [fact for fact in down if fact.subject in physical and _plain(physical[fact.subject]) in _TRYING]
    used = {fact.subject.device for fact in case.of("bench.gpu")}
    spares = _spares(case, state, layer)
    if trying or (down and not up):
        facts = [fact for fact in trying if fact not in spares] or trying or down
        # a second port of an adapter, or an Ethernet port, is often not cabled
        listed = all(fact.subject.device.endswith(" of the list") for fact in facts)  # whose ports, none can tell
        spare = all(fact.subject.port not in ("", "1") or fact in spares for fact in facts)
        yield found(
            "port-down",
            facts,
            "State: Down, physical state "
            + (physical[facts[0].subject].text if facts[0].subject in physical else "unknown"),
            "Active, LinkUp",
            0.5 if spare else 0.85,
            severity=Severity.QUESTION
            if spare
            else Severity.ERROR
            if (up or used) and not listed
            else Severity.WARNING,
            collect="is a cable plugged into that port, and was it up before?" if spare else "",
        )
    elif dark := _dark(down, up, layer):
        seen = f"State: Down, all {len(dark)} ports of {layer[dark[0].subject].text}"
        yield found("port-down", dark, seen, "Active", 0.7, severity=Severity.WARNING)
    elif down:
        # most of the same adapters of the host are in use: this one should be too
        odd = [
            fact
            for fact in down
            if fact not in spares and (_minority(case, fact, state) or _was_active(fact, layer, lid))
        ]
        yield found(
            "port-down",
            odd or down,
            "State: Down, physical state Disabled",
            "Active, as it was, or as the host's other adapters of this type"
            if odd
            else "Active where it is cabled",
            0.7 if odd else 0.4,
            severity=Severity.WARNING if odd else Severity.NOTE,
        )
    told = {fact.subject for fact in trying}
    retraining = [f for f in physical.values() if _plain(f) == "linkerrorrecovery" and f.subject not in told]
    yield from reported("link-errors", retraining, "physical state {text}", "LinkUp", 0.7)


def interfaces(case: Case) -> Iterator[Finding]:
    """Network interfaces of adapters that are down, where nothing else tells the states of the ports."""
    if case.of("hca.state"):
        return
    # one over InfiniBand is down where nobody gave it an address
    facts = [fact for fact in case.of("hca.netdev") if not str(fact.parts[0]).startswith("ib")]
    down = [fact for fact in facts if str(fact.parts[1]).lower() == "down"]
    if down:
        alone = len(down) == len(facts)
        yield found(
            "port-down",
            down,
            f"{down[0].parts[0]} ({down[0].parts[1]})",
            "Up" if alone else "Up where it is cabled",
            0.65 if alone else 0.4,
            severity=Severity.WARNING if alone else Severity.NOTE,
        )


def _was_active(fact: Fact, layer: dict[Subject, Fact], lid: dict[Subject, Fact]) -> bool:
    """Return true for an InfiniBand port that keeps the LID of a subnet manager: it was up, and was disabled."""
    about = fact.subject
    infiniband = about in layer and layer[about].text.lower() == "infiniband"
    return infiniband and about in lid and 0 < int(lid[about].number) < 0xC000


def _dark(down: list[Fact], up: list[Subject], layer: dict[Subject, Fact]) -> list[Fact]:
    """Return the ports of a link layer, where they are many and none has a link."""
    lit = {layer[about].text for about in up if about in layer}
    facts = [fact for fact in down if fact.subject in layer and layer[fact.subject].text not in lit]
    return facts if len(facts) >= MANY_ALIKE else []


def cards(case: Case) -> dict[tuple[str, str], str]:
    """The adapter of each device, by host and device: functions of one adapter have one system image GUID."""
    return {(fact.subject.host, fact.subject.device): fact.text for fact in case.of("hca.card")}


def _spares(case: Case, state: dict[Subject, Fact], layer: dict[Subject, Fact]) -> list[Fact]:
    """Ports that are down beside an active one of their adapter, where no adapter of the host has two in use."""
    known = cards(case)
    in_use: Counter[tuple[str, str, str]] = Counter()
    for about, fact in state.items():
        if fact.text.startswith("Active"):
            in_use[_card(about, known, layer)] += 1
    doubled = {host for (host, card, _), count in in_use.items() if card and count > 1}
    return [
        fact
        for about, fact in state.items()
        if fact.text.lower().startswith("down")
        and known.get((about.host, about.device))
        and in_use[_card(about, known, layer)] == 1
        and about.host not in doubled
    ]


def _card(about: Subject, known: dict[tuple[str, str], str], layer: dict[Subject, Fact]) -> tuple[str, str, str]:
    return about.host, known.get((about.host, about.device), ""), layer[about].text if about in layer else ""


def _minority(case: Case, fact: Fact, state: dict[Subject, Fact]) -> bool:
    """Return true for a port whose host has many adapters of its type and layer, most of them active."""
    kind, layer = last(case, "hca.type"), last(case, "hca.layer")

    def about(subject: Subject) -> tuple[str, str, str]:
        named = kind.get(Subject(subject.host, device=subject.device))
        return subject.host, named.text if named else "", layer[subject].text if subject in layer else ""

    mine = about(fact.subject)
    alike = [other for subject, other in state.items() if about(subject) == mine]
    up = sum(other.text.startswith("Active") for other in alike)
    # an adapter of one InfiniBand port was bought to be cabled; ports of Ethernet lie idle more often
    known = cards(case)
    card = known.get((mine[0], fact.subject.device))
    single = bool(card) and list(known.values()).count(str(card)) == 1 and mine[2].lower() == "infiniband"
    return bool(mine[1]) and up >= MANY_ALIKE and up > (0.45 if single else 0.75) * len(alike)


RULES: tuple[Rule, ...] = (states, interfaces)
