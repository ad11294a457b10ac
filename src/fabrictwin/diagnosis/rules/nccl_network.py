"""Rules on networks in NCCL's log: adapters, GPUDirect RDMA, rails, sockets, the bootstrap interface."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported
from fabrictwin.diagnosis.readers.host.kernel_log import LOCAL_INTERFACE

TWIN = "the twin's NCCL on this hardware"
MOSTLY = 0.5


def gpudirect(case: Case) -> Iterator[Finding]:
    """GPUDirect RDMA is off: by the module, by distance, or unused by connections."""
    off = [fact for fact in case.of("nccl.gdr") if fact.value is False]
    # a later line may turn it on: DMA-BUF is tried after the module
    on = {fact.subject for fact in case.of("nccl.gdr") if fact.value is True}
    off = [fact for fact in off if fact.subject not in on]
    direct = {fact.subject.host for fact in case.of("nccl.way") if "GDRDMA" in str(fact.value)}
    off = [fact for fact in off if fact.subject.host not in direct]
    if off:
        inside = case.nodes == 1 or _never_direct(case)
        efa = any("efa" in str(fact.value) for fact in case.of("nccl.ofi-provider"))
        yield found(
            "gdr-off",
            off,
            f"GPU Direct RDMA Disabled for {len({f.subject for f in off})} adapter(s)",
            "Enabled" + (", though one host alone, or this GPU, does without" if inside else ""),
            0.95 if case.nodes > 1 else 0.6,
            severity=Severity.NOTE
            if inside
            else Severity.NOTE
            if efa
            else Severity.ERROR
            if case.nodes > 1
            else None,
            expected_from="NCCL's own check of the peer-memory module",
            gain=_gain(case, "no-gpudirect-module"),
        )
    far = case.of("nccl.gdr-far")
    if far and case.nodes != 1:
        distance = far[0].parts
        yield found(
            "gdr-far",
            far,
            f"Disabled: distance {distance[1]} > {distance[2]}",
            "GPU and adapter behind one PCIe switch (PIX or PXB)",
            0.9,
        )
    ways = [fact for fact in case.of("nccl.way") if re.match(r"NET/(?!Socket)", str(fact.value and fact.parts[0]))]
    through = [fact for fact in ways if "GDRDMA" not in str(fact.parts[0])]
    # a few connections to another rail go through host memory on healthy hosts too
    share = sum(fact.count for fact in through) / max(sum(fact.count for fact in ways), 1)
    # sends may go through host memory on PCIe-only machines of old releases; receives never need to
    if share >= MOSTLY and not off and not far and (case.expected is None or case.expected.gpudirect):
        certain = case.expected is not None or any(fact.value is True for fact in case.of("nccl.gdr"))
        received = [fact for fact in through if fact.parts[1] == "receive"] or through
        yield found(
            "gdr-unused",
            received,
            f"via {received[0].parts[0]}, without /GDRDMA",
            f"via {received[0].parts[0]}/GDRDMA",
            0.8 if certain else 0.5,
            severity=None if certain else Severity.QUESTION,
            expected_from=TWIN if case.expected is not None else "",
            gain=_gain(case, "no-gpudirect-module"),
        )


# GPUs whose driver gives adapters no way to their memory
_NEVER_DIRECT = re.compile(r"GB10\b|GeForce|TITAN|Thor\b|Orin\b")


def _never_direct(case: Case) -> bool:
    """Return true where all GPUs that files name are of kinds without GPUDirect RDMA."""
    names = [fact.text for fact in case.of("bench.gpu", "smi.gpu", "topo.gpu-model")]
    return bool(names) and all(map(_NEVER_DIRECT.search, names))


def _gain(case: Case, fault: str) -> str:
    return "" if case.expected is None else case.expected.gain_without(fault)


# libfabric's providers over the kernel's sockets or within a host; cxi, opx, psm3 and verbs have adapters
_OVER_TCP = re.compile(r"(?:tcp|udp|sockets|net|shm|sm2)(?:$|[;,])")
_EC2 = re.compile(r"ip(?:-\d{1,3}){4}(?:\.|$)")
_UNREACHED = re.compile(r"[Cc]onnect.*(?:unreachable|timed out|[Nn]o route|refused)")
_CONNECTION = re.compile(r"[Cc]onnect(?:ion)? to .*(?:failed|returned|refused)")


def sockets(case: Case) -> Iterator[Finding]:
    """NCCL fell back to sockets, on all hosts or on some."""
    networks = case.of("nccl.network")
    ways = [fact for fact in case.of("nccl.way") if str(fact.parts[0]).startswith("NET/Socket")]
    socket = [fact for fact in networks if str(fact.value).lower() == "socket"]
    others = [fact for fact in networks if str(fact.value).lower() not in ("socket",)]
    missing = case.of("nccl.no-device")
    efa = [fact for fact in case.of("nccl.ofi-provider") if _OVER_TCP.match(str(fact.value).lower())]
    yield from reported("efa-absent", efa, "provider {text}", "efa", 0.9)
    if socket and others and {f.subject.host for f in socket}.isdisjoint({f.subject.host for f in others}):
        yield found(
            "network-differs",
            socket,
            f"Using network Socket, others {others[0].text}",
            f"Using network {others[0].text} on all",
            0.9,
        )
    yield from _plugins(others)
    if not (socket or ways or missing):
        return
    # an excerpt may not say how large the job is
    sized = bool(case.of("nccl.start", "nccl.complete", "nccl.placed", "bench.gpu"))
    if case.nodes == 1 and not ways and (sized or not missing):
        return
    alone = case.nodes < 2
    least = Severity.WARNING if ways or sized else Severity.QUESTION
    # a job that ended in a connection did not end because sockets are slow
    ended = any(_CONNECTION.search(fact.text) for fact in case.of("nccl.warn"))
    # hosts of a cloud whose adapters are reached by a plugin alone
    by_plugin = not efa and bool(missing) and all(_EC2.match(fact.subject.host) for fact in missing)
    yield found(
        "efa-absent" if by_plugin else "socket-fallback",
        [*missing, *socket, *ways],
        "NET/IB : No device found" if missing else "Using network Socket",
        "Using network IB",
        0.95 if not alone else 0.6 if ways or sized else 0.5,
        severity=least if alone or ended else Severity.ERROR,
        expected_from=TWIN if case.expected is not None else "",
        gain=_gain(case, "no-rdma-devices"),
    )
    if not (alone or by_plugin):
        # said at INFO: where sockets are in use, it tells why
        here = {fact.subject.host for fact in (*socket, *ways)}
        without = [fact for fact in case.of("nccl.no-verbs") if fact.subject.host in here]
        yield from reported("verbs-absent", without, "{text}", "libibverbs where the program runs", 0.85)


def _plugins(networks: list[Fact]) -> Iterator[Finding]:
    """Hosts that reach the network by different plugins, whose connections do not fit each other's."""
    hosts: dict[str, set[str]] = {}
    for fact in networks:
        hosts.setdefault(fact.text, set()).add(fact.subject.host)
    if len(hosts) > 1 and not set.intersection(*hosts.values()):
        names = ", ".join(f"{name} on {min(on)}" for name, on in hosts.items())
        yield found("network-differs", networks, f"Using network {names}", "the same on all hosts", 0.75)


def filtered(case: Case) -> Iterator[Finding]:
    """NCCL_IB_HCA names adapters, and NCCL found none: the filter leaves none of the host's."""
    missing, names = case.of("nccl.no-device"), case.settings.get("NCCL_IB_HCA", [])
    if not missing or not names:
        return
    wanted, listed = str(names[0].parts[1]), [fact.subject.device for fact in case.of("hca.guid")]
    prefixes = [one.split(":")[0] for one in wanted.lstrip("^=").split(",")]
    if any(device.startswith(one) for device in listed for one in prefixes):
        return
    yield found(
        "wrong-hca",
        [*names, *missing],
        f"NCCL_IB_HCA={wanted}, no device found",
        f"one of {', '.join(listed[:8])}" if listed else "a name that ibv_devices lists",
        0.92 if listed else 0.7,
    )


def adapters(case: Case) -> Iterator[Finding]:
    """Adapters that NCCL lists: too few, different by host, or of another network."""
    lists = [fact for fact in case.of("nccl.hcas") if fact.parts and fact.parts != ("",)]
    if not lists:
        return
    count = {fact.subject.host: len(fact.parts) for fact in lists}
    most = max(count.values())
    rails = case.expected.rails if case.knows_host and case.expected is not None and case.nodes != 1 else 0
    # ports that NCCL fused are one device to it and two in the list
    wanted = max(most, rails if rails and most < rails else 0)
    fewer = [fact for fact in lists if len(fact.parts) < wanted]
    if fewer and case.nodes != 1:
        yield found(
            "rails-missing",
            fewer,
            f"{len(fewer[0].parts)} adapter(s): {', '.join(str(p) for p in fewer[0].parts[:8])}",
            f"{wanted}, as " + ("other hosts have" if wanted == most else "the host has rails"),
            0.9 if wanted == most else 0.75,
            severity=Severity.ERROR if wanted == most else Severity.WARNING,
            expected_from="" if wanted == most else TWIN,
            gain=f"up to {wanted / max(len(fewer[0].parts), 1):.3g} times the bandwidth between hosts",
        )
    kinds = Counter(str(name).rpartition("/")[2] for name in lists[0].parts)
    bonds = [fact for fact in lists if any("bond" in str(name) for name in fact.parts) and len(fact.parts) > 1]
    if kinds["IB"] and kinds["RoCE"]:
        few = min(kinds, key=lambda kind: kinds[kind])
        odd = [str(name) for name in lists[0].parts if str(name).endswith(few)]
        yield found(
            "wrong-hca",
            lists,
            f"{', '.join(odd)} among {kinds.most_common(1)[0][0]} adapters",
            "adapters of one fabric",
            0.85,
            severity=Severity.NOTE if _passed_over(case, lists[0], odd) else None,
        )
    elif bonds and not all("bond" in str(name) for name in bonds[0].parts):
        odd = [str(name) for name in bonds[0].parts if "bond" in str(name)]
        yield found(
            "wrong-hca",
            bonds,
            f"{', '.join(odd)} among single adapters",
            "compute adapters only",
            0.75,
            severity=Severity.NOTE if _passed_over(case, bonds[0], odd) else None,
        )
    yield from _unused(case, most)


def _passed_over(case: Case, listed: Fact, odd: list[str]) -> bool:
    """Return true where no connection takes the adapters that do not fit: of one host, or as the log shows."""
    if case.nodes == 1:
        return True
    ways = [re.match(r"NET/IB\w*/(\d+)", str(fact.parts[0])) for fact in case.of("nccl.way")]
    used = {int(way[1]) for way in ways if way is not None}
    places = {place for place, name in enumerate(listed.parts) if str(name) in odd}
    return bool(used) and not used & places


def _unused(case: Case, listed: int) -> Iterator[Finding]:
    """Rails that the log lists and no connection takes."""
    used: dict[str, set[str]] = defaultdict(set)
    facts: list[Fact] = []
    ranks: dict[str, set[int]] = defaultdict(set)
    for fact in case.of("nccl.way"):
        device = re.match(r"NET/IB\w*/(\d+)", str(fact.parts[0]))
        if device is not None:
            used[fact.subject.host].add(device[1])
            ranks[fact.subject.host].add(fact.subject.rank)
            facts.append(fact)
    if not used or case.expected is None or not case.knows_host or case.expected.rails < 2:
        return
    thin = [host for host, devices in used.items() if len(devices) * 2 <= min(listed, case.expected.rails)]
    # a log of one rank shows the adapters of that rank alone
    thin = [host for host in thin if len(ranks[host]) > len(used[host])]
    if thin:
        mine = [fact for fact in facts if fact.subject.host in thin]
        yield found(
            "rails-missing",
            mine,
            f"connections take {len(used[thin[0]])} of {listed} adapters",
            f"{case.expected.rails} rails in use",
            0.6,
            expected_from=TWIN,
        )


def bootstrap(case: Case) -> Iterator[Finding]:
    """The interface over which ranks meet: a local one, or another subnet than other hosts'."""
    facts = case.of("nccl.bootstrap")
    listed = [
        fact
        for fact in case.of("nccl.sockets")
        if len(fact.parts) > 1 and any(LOCAL_INTERFACE.match(str(name)) for name in fact.parts)
    ]
    if listed and case.nodes != 1:
        used = ", ".join(str(name) for name in listed[0].parts)
        yield found("bootstrap-interface", listed, f"NET/Socket uses {used}", "no local interface among them", 0.6)
    local = [fact for fact in facts if LOCAL_INTERFACE.match(str(fact.parts[0]))]
    if local and case.nodes != 1:
        several = case.nodes > 1
        yield found(
            "bootstrap-interface",
            local,
            f"Bootstrap using {local[0].parts[0]}:{local[0].parts[1]}",
            "an interface with a route to all hosts",
            0.9 if several else 0.5,
            severity=Severity.ERROR if several else Severity.WARNING,
        )
        return
    addresses: dict[str, Fact] = {}
    for fact in facts:
        try:
            network = str(ipaddress.ip_network(f"{fact.parts[1]}/16", strict=False))
        except ValueError:
            continue
        addresses.setdefault(network, fact)
    names = {str(fact.parts[0]) for fact in facts}
    if len(addresses) > 1 and len(names) > 1 and len({fact.subject.host for fact in facts}) > 1:
        several_facts = list(addresses.values())
        # one of these addresses that another host does not reach settles it
        unreached = [
            fact
            for fact in case.of("nccl.warn", "nccl.info", "line.known")
            if _UNREACHED.search(fact.text) and any(str(one.parts[1]) in fact.text for one in several_facts)
        ]
        yield found(
            "bootstrap-interface",
            several_facts + unreached[:1],
            "; ".join(f"{f.subject.host}: {f.parts[0]} {f.parts[1]}" for f in several_facts[:3]),
            "one network for all hosts",
            0.86 if unreached else 0.5,
            severity=Severity.ERROR if unreached else None,
        )


RULES: tuple[Rule, ...] = (gpudirect, sockets, filtered, adapters, bootstrap)
