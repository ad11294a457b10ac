"""Rules on the inside of hosts in NCCL's log: transports, NVLink, channels, settings, releases."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.causes import cause
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Cause, Finding, Severity
from fabrictwin.diagnosis.found import found, reported

TWIN = "the twin's NCCL on this hardware"
SLOW_INIT_S = 60.0
SHOWN = 0.6  # sure of hosts whose fabric a file shows


def transports(case: Case) -> Iterator[Finding]:
    """Shared memory between GPUs that NVLink joins."""
    shared = [fact for fact in case.of("nccl.way") if str(fact.parts[0]).startswith("SHM")]
    linked = case.of("nccl.nvlink") or [f for f in case.of("nccl.graph") if f.parts[4] in ("NVL", "NVB")]
    expects = case.expected is not None and case.expected.nvlink
    peers = [fact for fact in case.of("nccl.way") if str(fact.parts[0]).startswith("P2P")]
    if shared and (linked or expects):
        yield found(
            "p2p-off",
            shared,
            f"via {shared[0].parts[0]}",
            "via P2P over NVLink",
            0.9,
            severity=Severity.ERROR if not peers else Severity.WARNING,
            expected_from=TWIN if expects else "the log's own print of NVLink",
            gain="" if case.expected is None else case.expected.gain_without_setting("NCCL_P2P_DISABLE", "1"),
        )


def nvlink(case: Case) -> Iterator[Finding]:
    """NVLink as NCCL prints the system: GPUs with less than their peers."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    facts: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in case.of("nccl.nvlink"):
        key = (fact.subject.host, fact.subject.device)
        total[key] += float(fact.parts[1] or 0)
        facts[key].append(fact)
    if len(total) < 2:
        return
    usual = max(total.values())
    weak = [key for key, value in total.items() if value < 0.95 * usual]
    # in meshes without switches GPUs may differ by design: the usual one is then not the greatest
    if weak and len(weak) <= len(total) / 2:
        mine = [fact for key in weak for fact in facts[key]]
        yield found(
            "nvlink-degraded",
            mine,
            f"NVLink {total[weak[0]]:g} GB/s",
            f"{usual:g} GB/s, as its peers",
            0.95,
            expected_from="other GPUs of the log",
            gain=f"up to {usual / max(total[weak[0]], 1):.3g} times the bandwidth inside the host",
        )


_OVER_A_PROCESSOR = frozenset(("PHB", "SYS"))
NARROW = 4  # times: a switch's own link that is so much slower than a device's behind it is none of a real switch
EMULATED = 1.0  # GB/s: the link that hypervisors give their ports, 2.5 GT/s x1


def virtual_ports(case: Case) -> Iterator[Finding]:
    """Devices below no PCI port, or below one whose link NCCL takes for a bottleneck: as in a virtual machine."""
    if case.nodes == 1:
        return  # nothing leaves the host
    slow = [f for f in case.of("nccl.uplink") if float(f.parts[1] or 0) * NARROW <= float(f.parts[3] or 0)]
    if slow:
        emulated = float(slow[0].parts[1] or 0) <= EMULATED
        yield found(
            "vm-topology" if emulated else "pci-narrow",
            slow,
            f"PCI[{slow[0].parts[1]}] above {slow[0].parts[2]}, whose own link is PCI[{slow[0].parts[3]}]",
            "a switch's own link as fast as its devices'",
            0.8,
            expected_from="NCCL's print of the system",
        )
    paths = case.of("nccl.networks")
    near = [fact for fact in paths if not set(fact.parts[2:]) <= _OVER_A_PROCESSOR]
    # hosts with NVSwitch have adapters beside GPUs; those with NVIDIA's own processors print other ways
    if paths and not near and all(fact.parts[1] and int(fact.parts[0] or 0) > 1 for fact in paths):
        yield found(
            "vm-topology",
            paths,
            f"{paths[0].subject.device}: {paths[0].parts[0]} networks, none nearer than {paths[0].parts[2]}",
            "PIX or PXB to the adapter of each rail",
            0.65,
            expected_from="NCCL's print of paths",
        )
    bare = case.of("nccl.no-port")
    if bare and not case.settings.get("NCCL_TOPO_FILE"):
        yield found(
            "vm-topology",
            bare,
            f"no PCI port above {bare[0].text}",
            "a root port or switch above each device, or the provider's topology file",
            0.6,
            expected_from="sysfs: NCCL reads the link of the port above each device",
        )


def topology_file(case: Case) -> Iterator[Finding]:
    """The same in topology XML: counts that differ between the ends of a link, or between GPUs."""
    links = case.of("topo.nvlink")
    by_file: dict[str, list[Fact]] = defaultdict(list)
    for fact in links:
        by_file[fact.place.file].append(fact)
    for facts in by_file.values():
        count: dict[tuple[str, str], int] = defaultdict(int)
        total: dict[str, int] = defaultdict(int)
        for fact in facts:
            count[fact.subject.device, str(fact.parts[0])] += int(fact.parts[1] or 0)
            total[fact.subject.device] += int(fact.parts[1] or 0)
        uneven = [(a, b) for (a, b), n in count.items() if (b, a) in count and n < count[b, a]]
        usual = median(sorted(total.values())[len(total) // 2 :])
        weak = {a for a, _ in uneven} or {bus for bus, n in total.items() if n < usual}
        if weak and len(weak) <= max(len(total) // 2, 1):
            mine = [fact for fact in facts if fact.subject.device in weak]
            few = min(total[bus] for bus in weak)
            most = max(total.values())
            yield found(
                "nvlink-degraded",
                mine,
                f"nvlink count {few}",
                f"{most}, as at the other end",
                0.95,
                # both ends of a link see it up or down: a file alone may be old, or written by hand
                severity=None if case.of("nccl.version", "nvlink.rate", "smi.path") else Severity.WARNING,
                expected_from="the other GPUs of the file",
                gain=f"up to {most / max(few, 1):.3g} times the bandwidth inside the host",
            )
    yield from _pci_in_topology(case)
    yield from _networks_in_topology(case)
    # NCCL fills in what a file leaves out of processors that it finds; of others it warns itself
    yield from reported(
        "topology-malformed",
        case.of("topo.malformed"),
        "{text}",
        "all attributes",
        0.4,
        severity=Severity.QUESTION,
    )


def _pci_in_topology(case: Case) -> Iterator[Finding]:
    for kind in ("topo.gpu-link", "topo.nic-link"):
        facts = [fact for fact in case.of(kind) if float(fact.parts[0] or 0) > 0 and fact.parts[1]]
        if len(facts) < 3:
            continue
        rate = {id(fact): float(fact.parts[0] or 0) * int(fact.parts[1] or 0) for fact in facts}
        usual = median(rate.values())
        slow = [fact for fact in facts if rate[id(fact)] < 0.75 * usual]
        if slow and len(slow) < len(facts) / 2:
            yield found(
                "pci-narrow",
                slow,
                f"{slow[0].parts[0]} GT/s x{slow[0].parts[1]}",
                f"{usual:g} GT/s times lanes, as its peers",
                0.7,
                expected_from="other devices of the file",
            )


def _networks_in_topology(case: Case) -> Iterator[Finding]:
    """Ports of one model of adapter that differ in speed; devices out of GPUDirect RDMA's reach beside others."""
    alike: dict[tuple[str, str, str], list[Fact]] = defaultdict(list)
    for fact in case.of("topo.net"):
        if fact.parts[2]:
            alike["net", fact.place.file, str(fact.parts[2])].append(fact)
    for facts in alike.values():
        usual = median(int(fact.parts[0] or 0) for fact in facts)
        slow = [fact for fact in facts if int(fact.parts[0] or 0) < 0.75 * usual]
        if slow and len(slow) < len(facts) / 2:
            yield found(
                "link-slow",
                slow,
                f"{int(slow[0].parts[0] or 0) / 1000:g} Gb/s",
                f"{usual / 1000:g} Gb/s, as its peers",
                0.7,
                expected_from="other adapters of the file",
            )
    for fact in case.of("topo.gpu-gdr"):
        alike["gpu", fact.place.file, ""].append(fact)
    off = []
    for (kind, *_), facts in alike.items():
        at = 1 if kind == "net" else 0
        without = [fact for fact in facts if str(fact.parts[at]) == "0"]
        if any(str(fact.parts[at]) == "1" for fact in facts):
            off += without
    if off:
        yield found(
            "gdr-off",
            off,
            'gdr="0"',
            'gdr="1", as its peers',
            0.5,
            severity=Severity.QUESTION,
            expected_from="other devices of the file",
            collect="NCCL's log with NCCL_DEBUG=INFO: GPU Direct RDMA Enabled or Disabled for each HCA",
        )


def channels(case: Case) -> Iterator[Finding]:
    """Channels and NVLS against what the twin's NCCL finds."""
    multicast = case.of("nccl.multicast")
    facts = case.of("nccl.channels")
    expected = case.expected
    no = [fact for fact in multicast if fact.value is False]
    if any(fact.value is True for fact in multicast) and no:
        yield found(
            "nvls-off", no, "NVLS multicast support is not available", "available, as on other hosts", 0.85
        )
    elif (
        expected is not None
        and case.knows_host
        and expected.nvls_channels
        and facts
        and not any(int(f.parts[1] or 0) for f in facts)
    ):
        yield found(
            "nvls-off",
            [*no, *facts],
            "0 nvls channels",
            f"{expected.nvls_channels} nvls channels",
            0.8,
            expected_from=TWIN,
            gain=expected.gain_without_setting("NCCL_NVLS_ENABLE", "0"),
        )
    if expected is not None and case.knows_host and facts and expected.channels:
        most = max(int(fact.parts[0] or 0) for fact in facts)
        if most * 2 <= expected.channels:
            yield found(
                "channels-few",
                facts,
                f"{most} coll channels",
                f"{expected.channels} coll channels",
                0.7,
                expected_from=TWIN,
            )


# variables of the group that NCCL's guide calls debugging, and values that NCCL would not choose
_FORCED = {
    "NCCL_P2P_DISABLE": r"1",
    "NCCL_SHM_DISABLE": r"1",
    "NCCL_IB_DISABLE": r"1",
    "NCCL_NVLS_ENABLE": r"0",
    "NCCL_ALGO": r".+",
    "NCCL_PROTO": r".+",
    "NCCL_MIN_NCHANNELS": r"\d+",
    "NCCL_MAX_NCHANNELS": r"\d+",
    "NCCL_MAX_CTAS": r"[1-8]",
    "NCCL_NET": r"(?i)socket",
    "NCCL_NET_GDR_LEVEL": r"(?i)LOC|0|PIX|1",
    "NCCL_NET_GDR_READ": r"0",
    "NCCL_P2P_LEVEL": r"(?i)LOC|0",
    "NCCL_NTHREADS": r"\d+",
    "NCCL_LL128_NTHREADS": r"\d+",
    "NCCL_MAX_NRINGS": r"\d+",
    "NCCL_MIN_NRINGS": r"\d+",
    "NCCL_PXN_DISABLE": r"1",
    "NCCL_CUMEM_ENABLE": r"(?!x)x",
    "NCCL_NET_DISABLE_INTRA": r"(?!x)x",
    "NCCL_MNNVL_ENABLE": r"0",
    "NCCL_IB_PCI_RELAXED_ORDERING": r"0",
    "NCCL_BUFFSIZE": r"\d{1,6}",
    "NCCL_IB_TIMEOUT": r"[1-9]|1[0-3]",
    "NCCL_IB_RETRY_CNT": r"[0-3]",
    "NCCL_MAX_P2P_NCHANNELS": r"[1-2]",
    "NCCL_CROSS_NIC": r"(?!x)x",
    "NCCL_P2P_PXN_LEVEL": r"(?!x)x",
}
# those that by themselves take most of the bandwidth
_GRAVE = frozenset(("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"))
_BETWEEN_HOSTS = re.compile(r"NCCL_(?:IB_\w+|NET(?:_GDR\w*)?|SOCKET_\w+|PXN_DISABLE|MNNVL_ENABLE)")


def settings(case: Case) -> Iterator[Finding]:
    """Settings that override what NCCL would choose."""
    for name, facts in sorted(case.settings.items()):
        value = str(facts[0].parts[1])
        wanted = _FORCED.get(name)
        forced = wanted is not None and re.fullmatch(wanted, value) is not None
        if name == "NCCL_IB_GID_INDEX" and value != "-1" and case.release >= (2, 21):
            forced = True
        if name == "NCCL_SOCKET_IFNAME" and value in ("lo", "docker0", "=lo", "=docker0"):
            forced = True
        if name == "NCCL_TOPO_FILE" and value:
            yield found(
                "topology-file", facts, f"{name}={value}", "unset on bare metal", 0.3, severity=Severity.NOTE
            )
        if forced:
            grave = name in _GRAVE
            yield found(
                _about(name),
                facts,
                f"{name}={value}",
                "unset",
                0.9 if grave else 0.7,
                severity=_weight(case, name),
                expected_from="NCCL user guide: variables for debugging should not stay in production",
                gain="" if case.expected is None else case.expected.gain_without_setting(name, value),
            )
    yield from _filtered(case)


def _weight(case: Case, name: str) -> Severity:
    """Return how bad a setting is here: one that is about a network means nothing to a job of one host."""
    if case.is_one_host and _BETWEEN_HOSTS.fullmatch(name):
        return Severity.NOTE
    return Severity.ERROR if name in _GRAVE and case.nodes != 1 else Severity.WARNING


def _filtered(case: Case) -> Iterator[Finding]:
    """NCCL_IB_HCA names fewer adapters than the host has rails."""
    facts = case.settings.get("NCCL_IB_HCA", [])
    if not facts or case.expected is None or case.nodes == 1:
        return
    value = str(facts[0].parts[1])
    named = [part for part in value.lstrip("=").split(",") if part]
    # a prefix such as `mlx5` takes them all
    single = not value.startswith("^") and all(re.search(r"\d(?::\d+)?$", part) for part in named)
    if named and single and len(named) < case.expected.rails and not 0 < _ranks_of_a_host(case) <= len(named):
        yield found(
            _about("NCCL_IB_HCA"),
            facts,
            f"NCCL_IB_HCA={value}",
            f"all {case.expected.rails} rails",
            0.8,
            # of hosts that no log shows, the catalog's need not be those with as many adapters
            severity=None if case.of("nccl.network") or case.expected.confidence >= SHOWN else Severity.QUESTION,
            expected_from=TWIN,
            gain=case.expected.gain_without_setting("NCCL_IB_HCA", value),
        )


def _ranks_of_a_host(case: Case) -> int:
    """Most ranks that one host has, as NCCL or nccl-tests say; 0 where neither does."""
    placed = [int(fact.parts[2] or 0) for fact in case.of("nccl.placed")]
    listed = Counter(fact.subject.host for fact in case.of("bench.gpu"))
    return max([*placed, *listed.values()], default=0)


def _about(name: str) -> Cause:
    """The cause with its fix for this variable."""
    from dataclasses import replace

    general = cause("setting-forced")
    return replace(general, fix=general.fix.replace("{variable}", name))


def releases(case: Case) -> Iterator[Finding]:
    """Ranks of different releases in one job."""
    facts = case.of("nccl.version")
    by_file: dict[str, set[str]] = defaultdict(set)
    for fact in facts:
        by_file[fact.place.file].add(fact.text)
    mixed = {name for names in by_file.values() if len(names) > 1 for name in names}
    starts = {str(fact.parts[0]) for fact in case.of("nccl.start")}
    if len(starts) > 1:
        return  # several jobs
    if mixed:
        yield found("version-skew", facts, ", ".join(sorted(mixed)), "one release", 0.8)
        return
    said = case.of("nccl.wording")
    newest = max(said, key=lambda fact: int(fact.parts[0] or 0), default=None)
    oldest = min(said, key=lambda fact: int(fact.parts[1] or 0), default=None)
    if newest is None or oldest is None or newest.subject.host == oldest.subject.host:
        return
    if newest.place.file == oldest.place.file and int(oldest.parts[1] or 0) < int(newest.parts[0] or 0):
        yield found(
            "version-skew",
            [oldest, newest],
            f"{oldest.subject.host} words it as 2.{oldest.parts[1]} and before, "
            f"{newest.subject.host} as 2.{newest.parts[0]} and later",
            "one release on all hosts",
            0.8,
        )


def started(case: Case) -> Iterator[Finding]:
    """Communicators that were begun and not completed, or took long."""
    done = {(fact.subject, fact.parts[0]) for fact in case.of("nccl.complete")}
    waiting = [fact for fact in case.of("nccl.start") if (fact.subject, fact.parts[0]) not in done]
    if waiting:
        whole = int(waiting[0].parts[1] or 0)
        some = len(done) > 0
        yield found(
            "init-incomplete",
            waiting,
            f"Init START of {len(waiting)} rank(s) and no Init COMPLETE",
            f"Init COMPLETE on all {whole} ranks",
            0.7 if some else 0.5,
            collect="the logs of all ranks with NCCL_DEBUG=INFO, to their end, and py-spy dump of the ranks named",
        )
    slow = [fact for fact in case.of("nccl.init-seconds") if float(fact.parts[0] or 0) > SLOW_INIT_S]
    if slow:
        worst = max(slow, key=lambda fact: float(fact.parts[0] or 0))
        yield found(
            "init-slow",
            [worst],
            f"{worst.parts[0]} s, of which {worst.parts[1]} {worst.parts[2]} s",
            f"below {SLOW_INIT_S:g} s",
            0.6,
        )


RULES: tuple[Rule, ...] = (transports, nvlink, virtual_ports, topology_file, channels, settings, releases, started)
