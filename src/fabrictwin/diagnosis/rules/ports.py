"""States and rates of ports, links of the fabric, GIDs, parts of switches."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact, Subject
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported
from fabrictwin.diagnosis.readers.fabric.links import LANE_GBPS
from fabrictwin.diagnosis.rules.port_states import DIGITS, MANY_ALIKE, cards, last

_FEC = frozenset(("rs", "fc"))  # forward error correction, as SONiC names it
HALF = 2  # of its rate at most: a port that runs one step lower may have been set so


def rates(case: Case) -> Iterator[Finding]:
    """Adapters below the rate of their peers of the same type, by host and layer."""
    rate, layer, kind = last(case, "hca.rate-gbps"), last(case, "hca.layer"), last(case, "hca.type")
    active = {about for about, fact in last(case, "hca.state").items() if fact.text.startswith("Active")}
    known, width = cards(case), last(case, "hca.width")
    ports = Counter((host, card) for (host, _), card in known.items())
    groups: dict[tuple[str, str, int], list[Fact]] = defaultdict(list)
    for about, fact in rate.items():
        if about in active and "bond" not in about.device:
            what = kind.get(Subject(about.host, device=about.device))
            # one with two ports does other work than those with one
            mine = ports[about.host, known.get((about.host, about.device), "")]
            groups[layer[about].text if about in layer else "", what.text if what else "", mine].append(fact)
    for facts in groups.values():
        usual = Counter(fact.number for fact in facts).most_common(1)[0]
        slow = [fact for fact in facts if 0 < fact.number < usual[0]]
        if slow and usual[1] >= max(2, len(slow)) and usual[1] > len(facts) / 2:
            lanes = {width[fact.subject].number for fact in facts if fact.subject in width}
            thin = len(lanes) > 1 and all(
                fact.subject in width and width[fact.subject].number < max(lanes) for fact in slow
            )
            yield found(
                "link-narrow" if thin else "link-slow",
                slow,
                f"{slow[0].number:g} Gb/s" + (f", {width[slow[0].subject].number:g} lane(s)" if thin else ""),
                f"{usual[0]:g} Gb/s, as its peers",
                0.8,
                expected_from="other adapters of the same type",
                gain=f"{usual[0] / slow[0].number:.3g} times the rate of that adapter",
            )
    far_below = [
        fact
        for fact in case.of("port.able-gbps")
        if 0 < HALF * float(fact.parts[0] or 0) <= float(fact.parts[1] or 0)
    ]
    yield from reported(
        "link-slow",
        far_below,
        "{0:g} Gb/s",
        "{1:g} Gb/s, the fastest mode that it advertises",
        0.6,
    )
    small = [fact for fact in case.of("hca.active-mtu") if fact.subject in active and 0 < fact.number < 4096]
    largest = last(case, "hca.max-mtu")
    small = [fact for fact in small if fact.subject in largest and largest[fact.subject].number > fact.number]
    if small and all("ethernet" in (layer[f.subject].text.lower() if f.subject in layer else "") for f in small):
        yield found(
            "mtu-small",
            small,
            f"active_mtu {small[0].value}",
            f"{largest[small[0].subject].value}",
            0.5,
            severity=Severity.NOTE if small[0].number >= 1024 else None,
        )


def links(case: Case) -> Iterator[Finding]:
    """Links of the fabric with fewer lanes or a lower speed than they could have."""
    facts = case.of("fabric.link")
    could = last(case, "fabric.could-be")
    stated = [fact for fact in facts if fact.subject in could]
    narrow = [
        fact
        for fact in stated
        if "Width" in could[fact.subject].text or re.search(r"\dX", could[fact.subject].text)
    ]
    slow = [fact for fact in stated if fact not in narrow]
    for name, mine in (("link-narrow", narrow), ("link-slow", slow)):
        if mine:
            yield found(
                name,
                mine,
                f"{mine[0].parts[0]}x {mine[0].parts[1]}",
                could[mine[0].subject].text,
                0.85,
                expected_from="what both ends can do",
            )
    if stated or len(facts) < 3:
        return
    yield from _untrained(facts)
    thin = [fact for fact in facts if int(fact.parts[0] or 0) == 1]
    if thin and len(thin) < len(facts) / 2:
        yield found("link-narrow", thin, "1 lane", "4 lanes", 0.85)
    yield from _halves(case, facts)
    by_node: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_node[fact.subject.device].append(fact)
    odd: list[Fact] = []
    for mine in by_node.values():
        speeds = [LANE_GBPS.get(str(fact.parts[1]), 0.0) for fact in mine]
        usual = Counter(speeds).most_common(1)[0]
        if len(mine) >= 4 and usual[1] >= 0.75 * len(mine):
            odd += [
                fact for fact, speed in zip(mine, speeds, strict=True) if 0 < speed < usual[0] and fact not in thin
            ]
    yield from reported(
        "link-slow",
        odd,
        "{0}x {1}",
        "the speed of the switch's other ports",
        0.4,
        severity=Severity.NOTE,
        collect="iblinkinfo, which says what a link could be",
    )


SPLIT = LANE_GBPS["HDR"]  # from which on a port of four lanes may be two of two
FEW = 4  # to one, that the others are


def _halves(case: Case, facts: list[Fact]) -> Iterator[Finding]:
    """Links of two lanes among those of four: between switches, or where no port can be split, they lost two."""
    half = [fact for fact in facts if fact.parts[0] == 2 and fact.parts[3] == "Active"]
    whole = sum(fact.parts[0] == 4 for fact in facts)
    if not half or FEW * len(half) > whole:
        return
    switches = {fact.subject.device for fact in case.of("fabric.node") if fact.parts[0] == "SW"}
    unsplit = [
        fact
        for fact in half
        if LANE_GBPS.get(str(fact.parts[1]), SPLIT) < SPLIT
        or (fact.subject.device in switches and _far(fact, switches))
    ]
    yield from reported("link-narrow", unsplit, "{0}x {1}", "4 lanes", 0.8)
    if not unsplit:
        yield from reported(
            "link-narrow",
            half,
            "{0}x {1}",
            "4 lanes, or ports that were split in two",
            0.45,
            severity=Severity.QUESTION,
            collect="iblinkinfo, which says what a link could be; the switch's configuration of split ports",
        )


def _far(fact: Fact, switches: set[str]) -> bool:
    """Return true where a link's far end is a switch, by its GUID or its name."""
    far = str(fact.parts[2])
    return far.startswith("S-") or re.sub(r"\[\d*\]$", "", far) in switches


UNTRAINED = LANE_GBPS["DDR"]  # at most: where training begins, of a link of these days
MODERN = LANE_GBPS["FDR"]


def _untrained(facts: list[Fact]) -> Iterator[Finding]:
    """Active links that have stayed at the speed at which training begins, beside those of FDR and faster."""
    speed = {id(fact): LANE_GBPS.get(str(fact.parts[1]), 0.0) for fact in facts}
    slow = [fact for fact in facts if 0 < speed[id(fact)] <= UNTRAINED and fact.parts[3] == "Active"]
    fast = sum(one >= MODERN for one in speed.values())
    if slow and len(slow) * 4 <= fast:
        yield found("link-slow", slow, f"{slow[0].parts[0]}x {slow[0].parts[1]}", "the speed of the others", 0.7)


def gids(case: Case) -> Iterator[Finding]:
    """Adapters without a GID that routers carry on; rdma_cm's mode."""
    rows: dict[Subject, list[Fact]] = defaultdict(list)
    for fact in case.of("gid"):
        rows[fact.subject].append(fact)
    bad, routed = [], 0
    for facts in rows.values():
        versions = {str(fact.parts[3]) for fact in facts}
        good = any(fact.parts[3] == "v2" and not str(fact.parts[1]).startswith("fe80") for fact in facts)
        routed += good
        if versions & {"v1", "v2"} and not good and not all(map(_is_infiniband, facts)):
            bad += facts
    lacking = len({fact.subject for fact in bad})
    # beside a few that have one, others are not set up; one of many that all have one was forgotten
    if bad and (not routed or routed >= MANY_ALIKE * lacking):
        failed = case.of("nccl.warn", "line.known", "bench.gpu")
        # reaches hosts of the same segment, and may be an interface that nobody set up
        local = any(fact.parts[3] == "v2" for fact in bad)
        yield found(
            "no-roce-v2-gid",
            bad,
            f"GIDs {', '.join(str(f.parts[1]) for f in bad[:3])}",
            "a RoCE v2 GID of an IP address",
            0.85,
            severity=None if failed else Severity.QUESTION if local else Severity.WARNING,
            collect="ip -br addr of that interface; show_gids of the peers" if local else "",
        )
    yield from _empty_gids(case)
    yield from _chosen_gid(case)
    yield from _uneven_gids(case)
    old = [fact for fact in case.of("roce.mode") if fact.value == 1]
    yield from reported("roce-v1", old, "RoCE v1", "RoCE v2", 0.9)


def _is_infiniband(fact: Fact) -> bool:
    """Return true for a GID of a port's GUID: one of Ethernet has ff:fe in the middle of its address."""
    gid = str(fact.parts[1])
    return gid.startswith("fe80") and fact.parts[3] == "v1" and not re.search(r"ff:fe\w\w", gid)


def _empty_gids(case: Case) -> Iterator[Finding]:
    """Ports whose GIDs are all empty: their network interface is in another namespace."""
    rows: dict[Subject, list[Fact]] = defaultdict(list)
    for fact in case.of("hca.gid"):
        rows[fact.subject].append(fact)
    for fact in case.of("gid"):
        rows[fact.subject].append(fact)
    empty = [
        fact
        for facts in rows.values()
        if not any(set(str(one.parts[1 if one.kind == "gid" else 0]).split(",")[0]) & DIGITS for one in facts)
        for fact in facts
    ]
    yield from reported(
        "no-rdma-device", case.of("hca.none"), "ibv_devices lists none", "the host's adapters", 0.85
    )
    yield from reported("rdma-namespace", empty, "GIDs of zeros alone", "GIDs of its interface's addresses", 0.9)
    used = [fact for fact in case.of("perftest.gid") if not set(str(fact.value)) & DIGITS]
    if used and not empty:  # or the index is one that the port has no GID at
        yield from reported("rdma-namespace", used, "a GID of zeros over Ethernet", "a GID of its interface", 0.7)


def _chosen_gid(case: Case) -> Iterator[Finding]:
    """NCCL_IB_GID_INDEX names a GID that is of RoCE v1, or link-local, where another index has a better one."""
    facts = case.settings.get("NCCL_IB_GID_INDEX", [])
    value = str(facts[0].parts[1]) if facts else ""
    rows = [fact for fact in case.of("gid") if fact.parts[3]]
    good = [fact for fact in rows if fact.parts[3] == "v2" and not str(fact.parts[1]).startswith("fe80")]
    bad = [fact for fact in rows if str(fact.parts[0]) == value and fact not in good]
    if bad and good:
        yield found(
            "gid-unreachable",
            [*facts, *bad],
            f"NCCL_IB_GID_INDEX={value}: {bad[0].parts[1]}, RoCE {bad[0].parts[3]}",
            f"index {good[0].parts[0]}: {good[0].parts[1]}, RoCE v2",
            0.85,
        )


# a GID as perftest prints it, a decimal number for each byte
_GID_KINDS = (("link-local", re.compile(r"254:128:")), ("of an IPv4 address", re.compile(r"(?:0+:){10}255:255:")))


def _uneven_gids(case: Case) -> Iterator[Finding]:
    """A link-local GID at one end of perftest, one of an IP address at the other: packets find no way."""
    mine, theirs = case.of("perftest.gid"), case.of("perftest.peer-gid")
    kinds = [
        {name for fact in facts for name, pattern in _GID_KINDS if pattern.match(str(fact.value))}
        for facts in (mine, theirs)
    ]
    if len(kinds[0]) == len(kinds[1]) == 1 and kinds[0] != kinds[1]:
        yield found(
            "gid-unreachable",
            [*mine, *theirs],
            f"a GID {kinds[0].pop()} here, {kinds[1].pop()} there",
            "GIDs of one kind at both ends: -x with each host's index of its IPv4 RoCE v2 GID",
            0.92,
        )


BAD_RATE = 1e-12  # of bits behind error correction: IBTA vol. 2, 6.4


def modules(case: Case) -> Iterator[Finding]:
    """Ports as mlxlink sees them: their modules, bits that arrive wrong, the advice of firmware."""
    outside = case.of("mlxlink.module")
    yield from reported("module-fault", outside, "{0}: {1}", "a reading within the module's bounds", 0.92)
    yield from reported("module-fault", case.of("ethernet.alarm"), "{text}: On", "Off", 0.9)
    yield from reported(
        "module-fault", case.of("module.outside"), "{0}: {1:g}", "{2:g} to {3:g}, the module's own bounds", 0.85
    )
    wrong = [fact for fact in case.of("mlxlink.errors") if float(fact.value or 0) > BAD_RATE]  # type: ignore[arg-type]
    yield from reported("link-errors", wrong, "effective BER {text}", f"at most {BAD_RATE}", 0.9)
    state = [fact for fact in case.of("mlxlink.state") if fact.parts[0] == "State" and fact.parts[1] != "Active"]
    advice = [fact for fact in case.of("mlxlink.advice") if not re.match(r"(?i)no issue|n/?a", fact.text)]
    if state:
        said = f": {advice[0].text}" if advice else ""
        yield found("port-down", [*state, *advice], f"State {state[0].parts[1]}{said}", "Active", 0.9)


def neighbours(case: Case) -> Iterator[Finding]:
    """Switches' interfaces that are down with a module in them, and neighbours that exchange no routes."""
    down = [fact for fact in case.of("sonic.interface") if fact.parts[:2] == ("down", "up") and _has_module(fact)]
    bare = [fact for fact in down if fact.parts[4] == "none" and str(fact.parts[2]).startswith(_CORRECTED)]
    yield from reported(
        "port-down",
        bare or down,
        "oper down, admin up, {2}, FEC {4}",
        "up" + (": both ends with FEC rs at this speed" if bare else ""),
        0.85,
    )
    yield from _sizes(case)
    described = [
        fact for fact in case.of("sonic.described") if fact.parts[:2] == ("down", "up") and _names_a_peer(fact)
    ]
    up = [fact for fact in case.of("sonic.described") if fact.parts[0] == "up"]
    if described and up and not down:
        yield found("port-down", described, f"oper down, admin up: {described[0].parts[2]}", "up", 0.7)
    untrained = [fact for fact in case.of("sonic.training") if fact.parts[:3] == ("down", "up", "on")]
    if not down:
        yield from reported("port-down", untrained, "oper down, admin up, link training: {3}", "trained", 0.8)
    yield from reported("port-down", case.of("nvue.down"), "{0} down", "up, as it is set", 0.75)
    yield from reported("module-fault", case.of("sonic.module"), "{text}", "OK", 0.92)
    corrects = [
        fact
        for fact in case.of("sonic.fec")
        if str(fact.parts[1]) in _FEC and str(fact.parts[0]) in {"none", *_FEC} - {str(fact.parts[1])}
    ]
    yield from reported(
        "link-errors",
        corrects,
        "FEC {0}",
        "{1}, as configured",
        0.5,
        severity=Severity.QUESTION,
        collect="show interfaces counters fec-stats; the other end's FEC",
    )
    yield from reported("port-down", case.of("sonic.bundle-down"), "{0}: {1}", "up, its ports selected", 0.8)
    yield from reported("bgp-down", case.of("bgp.away"), "{0} {1}", "established: a number of routes", 0.9)


def _sizes(case: Case) -> Iterator[Finding]:
    """A few of a switch's ports whose frames are shorter than those of all others of their speed."""
    by_speed: dict[object, list[Fact]] = defaultdict(list)
    for fact in case.of("sonic.interface"):
        if fact.parts[0] == "up" and str(fact.parts[3]).isdigit():
            by_speed[fact.parts[2]].append(fact)
    for facts in by_speed.values():
        (usual, count), *_ = Counter(int(fact.parts[3] or 0) for fact in facts).most_common(1)
        small = [fact for fact in facts if int(fact.parts[3] or 0) < usual]
        if small and len(small) < count:
            yield found(
                "mtu-differs",
                small,
                f"MTU {small[0].parts[3]}",
                f"{usual}, as the switch's other ports of this speed",
                0.45,
                severity=Severity.QUESTION,
                collect="the MTU of the neighbour at that port",
            )


_CORRECTED = ("200G", "400G", "800G", "1600G")  # speeds of four levels, which no link runs without correction


def _names_a_peer(fact: Fact) -> bool:
    """Return true for a description that says which port of whom stands at the other end."""
    return bool(re.search(r"\w[:|/]\w|\w+-\w+", str(fact.parts[2]))) and str(fact.parts[2]) != "N/A"


def _has_module(fact: Fact) -> bool:
    return str(fact.parts[5]) not in ("", "N/A")


def switches(case: Case) -> Iterator[Finding]:
    """Findings of ibswinfo on a switch, and of SONiC's health."""
    broken = case.of("switch.status")
    if broken:
        yield found("switch-part", broken, ": ".join(str(p) for p in broken[0].parts), "OK", 0.85)
    stopped = case.of("switch.process")
    yield from reported("switch-software", stopped, "{0}: {1}", "running", 0.85)
    yield from reported("switch-unreadable", case.of("switch.unreadable"), "{text}", "a number", 0.7)


def carriers(case: Case) -> Iterator[Finding]:
    """Interfaces of Linux that are set up and have no carrier; members of bonds without a link."""
    members = case.of("bond.member")
    lost = [fact for fact in members if fact.text != "up"]
    if lost:
        yield found("port-down", lost, f"MII Status: {lost[0].text}", "up, as the bond's other members", 0.88)
    states_of = [fact.text for fact in case.of("link.state")]
    bonded = [fact for fact in case.of("link.state") if fact.text == "member without carrier"]
    if states_of.count("member") > 0:
        yield from reported("port-down", bonded, "NO-CARRIER", "a carrier, as the bond's other members", 0.85)
    fabric = [fact for fact in case.of("link.state") if fact.subject.device.startswith("ib")]
    off = [fact for fact in fabric if fact.text == "off"]
    if off and 2 * len(off) < sum(fact.text == "up" for fact in fabric):
        yield found("port-down", off, "interface down", "up, as the host's other InfiniBand interfaces", 0.7)
    gone = [fact for fact in case.of("link.state") if fact.text == "no carrier"]
    if gone:
        alone = not any(text in ("up", "member") for text in states_of)
        yield found(
            "port-down",
            gone,
            "NO-CARRIER",
            "a carrier where it is cabled",
            0.6 if alone else 0.4,
            severity=Severity.WARNING if alone else Severity.NOTE,
        )


RULES: tuple[Rule, ...] = (rates, links, gids, modules, neighbours, switches, carriers)
