"""Paths between GPUs and to adapters, as `nvidia-smi topo` has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found
from fabrictwin.diagnosis.rules.inside.gpu_names import STANDS_ALONE

SEVERAL = 3  # pairs that one GPU is in
FEWEST_JOINED, MOST_ALONE = 3, 3  # GPUs that NVLink joins, for each that it does not
MOST_LINKS = 18  # of a GPU; to each of its peers as many as that only a switch makes of fewer
FEWER = 2  # GPUs to an adapter at least: each cannot have one beside it
_UNDER_ONE_SWITCH = {"PIX", "PXB", "PSB"}
_DISTANCES = ("PHB", "NODE", "SYS")  # of nvidia-smi, from near to far
FEWEST_NEAR = 3  # GPUs with an adapter of their own, for each without


def topology(case: Case) -> Iterator[Finding]:
    """Paths of `nvidia-smi topo -m`: NVLink uneven, everything far apart."""
    paths = case.of("smi.path")
    between = [
        fact for fact in paths if str(fact.parts[0]).startswith("GPU") and fact.subject.device.startswith("GPU")
    ]
    linked = [fact for fact in between if str(fact.parts[1]).startswith("NV")]
    if linked:
        usual = Counter(str(fact.parts[1]) for fact in linked).most_common(1)[0][0]
        apart = [fact for fact in between if not str(fact.parts[1]).startswith("NV")]
        weak = [fact for fact in linked if int(str(fact.parts[1])[2:] or 0) < int(usual[2:] or 0)]
        # bridges and cubes join some pairs only; beside GPUs that are all joined one alone has lost its links
        mesh = len(apart) > len(between) / 4 and not _left_out(between, linked)
        if (apart or weak) and not mesh and len({str(f.parts[1]) for f in linked}) <= 2:
            bad = weak or apart
            yield found(
                "nvlink-degraded",
                bad,
                f"{bad[0].subject.device} - {bad[0].parts[0]}: {bad[0].parts[1]}",
                usual,
                0.8,
                object=_common(bad),
            )
    near = [
        fact
        for fact in paths
        if str(fact.parts[0]).startswith(("NIC", "mlx5")) and fact.subject.device.startswith("GPU")
    ]
    # GPUs whose memory is a NUMA node of the host reach adapters over the processor's own links
    coherent = bool(case.of("smi.coherent"))
    if len(near) >= 8 and not coherent and not any(str(fact.parts[1]) in _UNDER_ONE_SWITCH for fact in near):
        yield found(
            "vm-topology",
            near,
            f"GPUs and adapters: {near[0].parts[1]} everywhere",
            "PIX or PXB to the adapter of each rail",
            0.6,
            # boards without NVSwitch may have their slots and adapters below different processors
            severity=None
            if _switched(between, linked)
            else Severity.NOTE
            if _of_cards(case, between, linked) and FEWER * _adapters(near) <= len(_gpus(near))
            else Severity.QUESTION,
            collect="systemd-detect-virt; lspci -tv: do GPUs and adapters share a PCIe switch on the hardware?",
        )
        return
    beside = {
        gpu: {str(f.parts[1]) for f in near if f.subject.device == gpu} for gpu in {f.subject.device for f in near}
    }
    close = {gpu for gpu, ways in beside.items() if ways & _UNDER_ONE_SWITCH}
    far = [fact for fact in near if fact.subject.device not in close]
    # hosts with one adapter for two GPUs have as many GPUs far from it as near
    if far and FEWEST_NEAR * (len(beside) - len(close)) <= len(close):
        yield found(
            "gdr-far",
            far,
            f"{far[0].subject.device}: no adapter nearer than {_nearest(far)}",
            "PIX or PXB, as its peers",
            0.4,
            severity=Severity.QUESTION,
            collect="lspci -tv, and NCCL's log with NCCL_DEBUG=INFO: which adapter that GPU uses, and how",
        )


def _switched(between: list[Fact], linked: list[Fact]) -> bool:
    """Return true where GPUs reach every other over more NVLinks than they have for each: through NVSwitch."""
    if not linked or len(linked) != len(between):
        return False
    peers = Counter(fact.subject.device for fact in linked).most_common(1)[0][1]
    return peers * int(str(linked[0].parts[1])[2:] or 0) > MOST_LINKS


def _adapters(near: list[Fact]) -> int:
    return len({str(fact.parts[0]) for fact in near})


def _gpus(near: list[Fact]) -> set[str]:
    return {fact.subject.device for fact in near}


def _of_cards(case: Case, between: list[Fact], linked: list[Fact]) -> bool:
    """Return true for cards, bridged or not, whose boards are as their makers like."""
    names = [fact.text for fact in case.of("smi.gpu")]
    return 2 * len(linked) < len(between) or not linked or (bool(names) and all(map(STANDS_ALONE.search, names)))


def _nearest(facts: list[Fact]) -> str:
    return min((str(f.parts[1]) for f in facts), key=lambda way: _DISTANCES.index(way) if way in _DISTANCES else 9)


def _common(pairs: list[Fact]) -> str:
    """Return the one GPU that is in all of several pairs; empty where there is none."""
    ends = [{fact.subject.device, str(fact.parts[0])} for fact in pairs]
    shared = set.intersection(*ends)
    return shared.pop() if len(shared) == 1 and len(ends) > SEVERAL else ""


def _left_out(between: list[Fact], linked: list[Fact]) -> bool:
    """Return true where NVLink joins three or more GPUs, each to all others, and reaches the rest nowhere."""
    joined = {fact.subject.device for fact in linked} | {str(fact.parts[0]) for fact in linked}
    alone = {fact.subject.device for fact in between} - joined
    inside = [fact for fact in between if fact.subject.device in joined and str(fact.parts[0]) in joined]
    return bool(alone) and MOST_ALONE * len(alone) <= len(joined) >= FEWEST_JOINED and len(inside) == len(linked)


def peer_access(case: Case) -> Iterator[Finding]:
    """GPUs that cannot reach each other's memory (`nvidia-smi topo -p2p`), where others can or all should."""
    facts = [fact for fact in case.of("smi.peer") if fact.parts[1] != "TNS"]  # sockets of some hosts keep apart
    bad = [fact for fact in facts if fact.parts[1] != "OK"]
    names = [fact.text for fact in case.of("smi.gpu")]
    some = len(bad) < len(facts)
    able = some or (bool(names) and not any(map(STANDS_ALONE.search, names)))
    if bad and not (names and all(map(STANDS_ALONE.search, names)) and not some):
        fact = bad[0]
        yield found(
            "p2p-off",
            bad,
            f"{fact.subject.device} - {fact.parts[0]}: {fact.parts[1]} ({len(bad)} of {len(facts)} pairs)",
            "OK",
            0.8 if able else 0.6,
            severity=Severity.WARNING if able else Severity.QUESTION,
            collect=""
            if able
            else "nvidia-smi -L: GeForce and inference cards have none; lspci -vvv | grep ACSCtl",
        )


RULES: tuple[Rule, ...] = (topology, peer_access)
