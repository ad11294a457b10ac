"""NVLinks of all GPUs alike and fewer than they have: half of a rack's, which no peer shows.

A GPU behind NVSwitches reaches every other over all of its links (`nvidia-smi topo -m` and topology XML have their
number, NCCL's log their rate). Of a named GPU the catalog says how many these are; of an unnamed one a number is
told that no GPU of the catalog behind NVSwitches has. GPUs that are joined without switches, and cards, are left
alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

from fabrictwin import catalog
from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.expectation.hardware import gpu_of
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found

SLOW = 0.75  # of a link's rate: drivers print 25 to 26.6 GB/s of links of the same
PRINTED = 0.06  # GB/s: half of the last digit that NCCL prints
_BITS = 8e9  # of a GB


@cache
def _switched_gpus() -> dict[str, int]:
    """GPUs of the catalog that NVSwitches join, with their links."""
    hosts = [catalog.host(name) for name in catalog.names("host")]
    return {
        host.gpu: entry.nvlink_links.value
        for host in hosts
        if host.nodes.nvswitch and (entry := catalog.gpu(host.gpu)).nvlink_links is not None
    }


@cache
def _kernel_rates() -> dict[str, float]:
    """GB/s that NCCL reckons of one NVLink of each GPU that NVSwitches join."""
    links = {gpu: catalog.gpu(gpu).nvlink for gpu in _switched_gpus()}
    return {gpu: catalog.nvlink(link).kernel_rate.value / _BITS for gpu, link in links.items() if link}


def _named(case: Case) -> str:
    """The one GPU of the catalog that files name, and NVSwitches join; empty where they do not."""
    names = {gpu_of(fact.text) for fact in case.of("bench.gpu", "smi.gpu", "topo.gpu-model")}
    return next(iter(names)) if len(names) == 1 and names <= set(_switched_gpus()) else ""


def halves(case: Case) -> Iterator[Finding]:
    """Fewer links than the GPUs have, on all of them alike: as listed, in the matrix, and in NCCL's log."""
    gpu = _named(case)
    yield from _listed(case, gpu)
    yield from _between(case, gpu)
    yield from _reckoned(case, gpu)
    yield from _in_topology(case, gpu)


def _listed(case: Case, gpu: str) -> Iterator[Finding]:
    active, unnamed = case.of("nvlink.rate"), not gpu or case.of("nvlink.inactive")
    if unnamed or not active:
        return
    links, entry = _switched_gpus()[gpu], catalog.gpu(gpu)
    count = Counter(fact.subject.device for fact in active)
    # far fewer are an excerpt
    if len(count) > 1 and len(set(count.values())) == 1 and links // 2 <= max(count.values()) < links:
        yield found(
            "nvlink-inactive",
            active,
            f"{max(count.values())} links of each GPU",
            f"{links}, as a {entry.title} has",
            0.8,
            severity=Severity.WARNING,
            expected_from=f"the catalog: {entry.nvlink_links.source if entry.nvlink_links else entry.source}",
        )
    wire = catalog.nvlink(entry.nvlink or "")
    rate = wire.lane_rate.value * wire.lanes.value / _BITS
    fastest = max(fact.number for fact in active)
    if 0 < fastest < SLOW * rate:
        yield found(
            "nvlink-degraded",
            active,
            f"{fastest:g} GB/s of each link",
            f"{rate:g} GB/s",
            0.8,
            severity=Severity.WARNING,
            expected_from=f"the catalog: {wire.title}",
        )


def _between(case: Case, gpu: str) -> Iterator[Finding]:
    """The matrix: the same number to every GPU, more than there would be for each without a switch."""
    paths = [f for f in case.of("smi.path") if f.subject.device.startswith("GPU") and str(f.parts[0])[:3] == "GPU"]
    linked = [fact for fact in paths if str(fact.parts[1]).startswith("NV")]
    counts = {int(str(fact.parts[1])[2:]) for fact in linked}
    if len(linked) != len(paths) or len(counts) != 1:
        return
    (links,), most = counts, max(_switched_gpus().values())
    peers = Counter(fact.subject.device for fact in linked).most_common(1)[0][1]
    # boards without switches have a third of a GPU's links to each other one
    if links * peers > most or (gpu and links >= _switched_gpus()[gpu] // 2):
        yield from _few(linked, links, f"NV{links} between all GPUs", gpu)


def _reckoned(case: Case, gpu: str) -> Iterator[Finding]:
    """NCCL's print of the system: what it reckons of a GPU's links to NVSwitches."""
    totals: dict[tuple[str, str], float] = defaultdict(float)
    facts = [fact for fact in case.of("nccl.nvlink") if str(fact.parts[0]).startswith("NVS")]
    for fact in facts:
        totals[fact.subject.host, fact.subject.device] += float(fact.parts[1] or 0)
    if len(totals) < 2 or len(set(totals.values())) != 1:
        return
    total = next(iter(totals.values()))
    rates = [_kernel_rates()[gpu]] if gpu else sorted(set(_kernel_rates().values()))
    numbers = {round(total / rate) for rate in rates if abs(round(total / rate) * rate - total) <= PRINTED}
    if numbers and not numbers & set(_switched_gpus().values() if not gpu else [_switched_gpus()[gpu]]):
        yield from _few(facts, max(numbers), f"NVL[{total:g}] of each GPU: {max(numbers)} links", gpu)


_SWITCH = "0x0680"  # the PCI class of what a link goes to, where that is an NVSwitch


def _in_topology(case: Case, gpu: str) -> Iterator[Finding]:
    """Topology XML: the links of each GPU to NVSwitches."""
    files: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    facts = [fact for fact in case.of("topo.nvlink") if str(fact.parts[2]).startswith(_SWITCH)]
    for fact in facts:
        files[fact.place.file][fact.subject.device] += int(fact.parts[1] or 0)
    for name, totals in files.items():
        counts = set(totals.values())
        if len(totals) > 1 and len(counts) == 1:
            links = counts.pop()
            mine = [fact for fact in facts if fact.place.file == name]
            yield from _few(mine, links, f"nvlink count {links} of each GPU", gpu)


def _few(facts: list[Fact], links: int, seen: str, gpu: str) -> Iterator[Finding]:
    """Tell of a number of links that the GPU, or any that NVSwitches join, does not have."""
    full = {_switched_gpus()[gpu]} if gpu else set(_switched_gpus().values())
    if links in full or links > max(full):
        return
    yield found(
        "nvlink-degraded",
        facts,
        seen,
        f"{max(full)}, as a {catalog.gpu(gpu).title} has"
        if gpu
        else f"one of {', '.join(map(str, sorted(full)))}, as GPUs behind NVSwitches have",
        0.85 if gpu else 0.6,
        object="all GPUs",
        severity=Severity.WARNING,
        expected_from="the catalog",
        collect="" if gpu else "nvidia-smi nvlink -s; nvidia-smi -q | grep -A9 Fabric",
    )


RULES: tuple[Rule, ...] = (halves,)
