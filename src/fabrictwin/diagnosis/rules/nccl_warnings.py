"""Warnings of NCCL, by their words. The first in time is nearest to the cause; consequences go beneath it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found

# status codes of completions: ibv_wc_status of rdma-core's libibverbs/verbs.h
_STATUS = {
    4: "protection",
    5: "flushed",
    9: "remote-access",
    10: "remote-access",
    11: "remote-access",
    12: "transport-retry",
    13: "receiver-not-ready",
}
_COMPLETION = re.compile(r"ompletion .*?(?:with error|status[= ]) ?=?(?:\w+\()?(\d+)|Failed status (\d+)")
_WORDS: tuple[tuple[str, str], ...] = (
    (r"async (?:fatal )?event.*(?:port error|port err)|port error|async event : port", "port-error-event"),
    (r"async .*event.*(?:catastrophic|device fatal)", "adapter-error"),
    (r"async .*event.*(?:local access violation|invalid request local)|local access violation", "protection"),
    (r"[Cc]ollective mismatch|[Mm]ismatched collective", "size-mismatch"),
    (r"shmutils\.cc: .*uda failure", "shared-memory"),
    (r"nv_peer_mem, or nvidia_peermem|allocate MR.*of a GPU buffer", "peermem-missing"),
    (r"[Tt]ransport retry count(?:er)? exceeded", "transport-retry"),
    (r"RNR retry|[Rr]eceiver?-not?-ready retry", "receiver-not-ready"),
    (r"^Local protection|local protection error", "protection"),
    (r"^Remote access|remote access error", "remote-access"),
    (r"[Tt]oo many open files", "open-files"),
    (r"uncorrectable NVLink error", "nvlink-error"),
    (r"uncorrectable ECC error", "gpu-memory"),
    (r"Unable to open device", "rails-missing"),
    (r"Port number \d+ state is Init", "no-subnet-manager"),
    (r"Port number \d+ state is", "port-down"),
    (r"transport/nvls\.cc: .*uda failure|NVLS|multicast|cuMulticast", "nvls-off"),
    (
        r"ibv_modify_qp failed with .*(?:timed out|Invalid argument|unreachable|No such device|\b110\b|\b22\b)|"
        r"ibv_modify_qp failed *(?:\(errno|$)|modify (?:the )?QP .{0,40}to (?:RTR|RTS)|Connect the HCA's",
        "gid-unreachable",
    ),
    (
        r"ibv_reg_mr|ibv_create_(?:qp|cq)\b.*(?:failed|Cannot)|Cannot allocate memory.*ibv|RLIMIT_MEMLOCK|"
        r"allocate MR|"
        r"memlock limit|locked memory",
        "locked-memory",
    ),
    (r"shared memory segment|/dev/shm|No space left on device|shmem|posix_fallocate", "shared-memory"),
    (r"system not yet initialized|error 802|cuda failure 802|CUDA_ERROR_SYSTEM_NOT_READY", "cuda-not-initialized"),
    (
        r"no socket interface found|No (?:usable )?(?:socket )?interface found|find a usable network interface",
        "no-socket-interface",
    ),
    (r"NET/Socket : no interface", "no-socket-interface"),
    (r"Network does not match", "network-differs"),
    (r"[Dd]uplicate GPU detected", "duplicate-gpu"),
    (
        r"[Mm]essage truncated|size mismatch|(?:received|receiving) [\d#]+ bytes instead of|"
        r"mismatch\w* (?:between|collective|size)",
        "size-mismatch",
    ),
    (r"wrong type \d+ != \d+|invalid magic|unexpected (?:magic|connection)|magic .* mismatch", "foreign-peer"),
    (r"provider (?:efa )?output empty|optimal provider|No eligible providers|efa.*not found", "efa-absent"),
    (r"Attribute \w+ of node \w+ not found|XML|topology file", "topology-malformed"),
    (r"out of memory|cudaErrorMemoryAllocation", "out-of-memory"),
    (r"[Mm]issing .?.?iommu=pt|NUMA [Aa]uto ?[Bb]alanc", "host-settings"),
    (r"Could not enable P2P|peer mapping resources|P2P is disabled", "p2p-off"),
    (r"Cuda failure|CUDA failure|cuda failure", "cuda-failure"),
    (
        r"[Cc]onnection (?:refused|timed out)|retries exhausted|exceeded retries|No route to host|"
        r"connect to .* failed",
        "connect-refused",
    ),
    (
        r"[Cc]onnection closed|[Cc]onnection reset|Broken pipe|remote process exited|peer may have crashed|"
        r"Socket recv failed|Failed to execute operation|Error encountered progressing|Could not receive type|"
        r"Proxy Call to rank \d+ failed",
        "peer-closed",
    ),
)
# NCCL prints the GIDs of RoCE alone, where a link-local one reaches no other subnet
_LINK_LOCAL = re.compile(r"(?:localGid|local GID) fe80:")
# words by which NCCL tells of what it does, not of trouble
_HARMLESS = re.compile(
    r"async .*event.*(?:client reregistration|GID table|LID change|SM change|P_?Key|port active|"
    r"communication established|send queue drained)|communicator encountered a fatal error|"
    r"NET/Plugin|Could not find: libnccl|libibverbs\.so.*version|dlsym failed|dlvsym failed|is deprecated|"
    r"Failed to (?:find|open) (?:libnccl|libibverbs|libmlx5|libcuda)|NCCL_\w+ .* is not supported"
)
_NO_VERBS = re.compile(r"Failed to open libibverbs")


def cause_of(text: str) -> str:
    """The id of the cause that a warning points to; empty where it is harmless."""
    if _LINK_LOCAL.search(text):
        return "gid-unreachable"
    status = _COMPLETION.search(text)
    if status is not None:
        return _STATUS.get(int((status[1] or status[2])[:4]), "nccl-warning")
    for words, name in _WORDS:
        if re.search(words, text):
            return name
    if _NO_VERBS.search(text):
        return "socket-fallback"
    return "" if _HARMLESS.search(text) else "nccl-warning"


_EXPECTED = {
    "transport-retry": "packets acknowledged within the queue pair's retries",
    "locked-memory": "memory registered: locked memory unlimited",
    "gid-unreachable": "the queue pair connected over a routable GID",
    "shared-memory": "/dev/shm with room for all ranks' buffers",
    "peer-closed": "the peer alive",
    "connect-refused": "the peer answers",
}


_VAGUE = frozenset(("peer-closed", "nccl-warning"))


def warnings(case: Case) -> Iterator[Finding]:
    """Findings of warnings, each cause once."""
    by_cause: dict[str, list[Fact]] = {}
    for fact in case.of("nccl.warn", "verbs.failed"):
        name = cause_of(fact.text)
        if name and (name != "nccl-warning" or fact.kind == "nccl.warn"):
            by_cause.setdefault(name, []).append(fact)
    hosts = set(case.evidence.hosts())
    for position, (name, facts) in enumerate(by_cause.items()):
        mine = {fact.subject.host for fact in facts} - {""}
        where = "all hosts: a setting or the fabric" if len(hosts) > 1 and mine == hosts else ""
        if len(hosts) > 2 and len(mine) == 1:
            where = "one host alone: that host"
        if name == "nccl-warning" and len(by_cause) > 1:
            continue
        if name == "socket-fallback" and case.nodes == 1:
            continue  # a host alone needs no adapters
        confidence = 0.9 if name != "nccl-warning" else 0.3
        # what a peer's end looks like is no cause of its own where nothing else is known: say so
        severity = Severity.WARNING if name == "peer-closed" and not set(by_cause) - _VAGUE else None
        yield found(
            name,
            facts,
            facts[0].text + (f" ({where})" if where else ""),
            _EXPECTED.get(name, "no such warning"),
            confidence - 0.02 * min(position, 5),
            severity=severity,
            collect="the logs of all ranks: the peer's first warning is nearer to the cause"
            if name == "peer-closed"
            else "",
        )


RULES: tuple[Rule, ...] = (warnings,)
