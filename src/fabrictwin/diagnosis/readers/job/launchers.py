"""Start-up logs of torchrun, PyTorch's watchdog and vLLM, failing programs, and health checks' lines."""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader
from fabrictwin.diagnosis.readers.log_levels import level_of

OPENS = (
    r"Watchdog caught collective operation timeout|last enqueued (?:NCCL )?work|ncclInternalError|ncclSystemError|"
    r"unhandled (?:system|cuda) error|Test NCCL failure|torch\.distributed\.elastic|ChildFailedError|"
    r"vLLM is using nccl|Custom allreduce|RendezvousTimeoutError|Signal \d+ \(SIG|exitcode\s*:\s*-?\d+|"
    r"(?:client|Client|server) socket has (?:timed out|failed)|connect\(\) timed out\. Original timeout|"
    r"retrieving ncclUniqueId from \[0\]|Detected mismatch between collectives on ranks|"
    r"misc/\w+\.c[cu]:\d+ WARN |"
    r"[Tt]oo many open files|No module named '|Avg bus bandwidth is [\d.]+|"
    r"CUDA (?:out of memory|error)|error\.?\s*802|system not yet initialized|NCCL Test (?:Succeeded|Failed)|"
    r"\w+ [Tt]est:? (?:[Pp]assed|[Ss]ucceeded)\b|[Hh]ealth checks? passed\b|Overall system status is |"
    r"healthcheck|DistStoreError|DistNetworkError|^\s*Last error:\s*$|provider \w+ output empty list|"
    r"NET/OFI .*(?:provider|failure)|\[c10d(?: - \w+)?\]|vLLM API server version|"
    r"Initializing an? (?:V\d )?LLM engine|torch/distributed/(?:run|elastic)|"
    r"Application startup complete|Found nccl from library|torch\.distributed\.run|Rendezvous'?ing worker group|"
    r"killed by signal: |Bus error \(core|memlock limit|allocate some locked memory"
)
_WATCHDOG = re.compile(
    r"\[?Rank (\d+)\]? .*?collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+), "
    r"(?:NumelIn=(\d+), NumelOut=(\d+), |TensorShape=\[[\d, ]*\], )?Timeout\(ms\)=(\d+)\)"
)
_GROUP = re.compile(r"PG (?:ID \S+ PG )?(?:(?:GUID|ID) )?([^\s\]()]+) ?(?:\(([^)]*)\))?")
# older watchdogs name the group of a call that timed out in their next line alone
_AT_WORK = re.compile(r"\[PG .*? Rank (\d+)\] .*\bat (?:NCCL )?work(?: sequence id)?: (\d+)")
# where whoever passed it on made one line of the message
_LAST_ERROR = re.compile(r"nccl\w+Error: .* Last error: (.+)")
_PROGRESS = re.compile(r"last enqueued (?:NCCL )?work: (\d+), last completed (?:NCCL )?work: (-?\d+)")


class Launchers(LineReader):
    """Reads what launchers and frameworks write around a job."""

    _quoted = False  # NCCL's own last words follow

    def line(self, text: str) -> bool:
        """Take a line; False where it says nothing that this reader knows."""
        add = self.sink.add
        if self._quoted and text.strip():
            self._quoted = False
            add("nccl.warn", text.strip()[:300])
            return True
        inline = _LAST_ERROR.search(text)
        if inline is not None:
            add("nccl.warn", inline[1].strip()[:300])
            return True
        if text.strip() == "Last error:":
            self._quoted = True
            return True
        watchdog = _WATCHDOG.search(text)
        if watchdog is not None:
            group = _GROUP.search(text)
            rank, sequence, verb, size_in, size_out, limit = watchdog.groups(default="-1")
            name = (group[2] or group[1]) if group else ""
            add(
                "watchdog",
                (name, int(sequence), verb, int(size_in), int(size_out), int(limit)),
                Subject(rank=int(rank)),
            )
            return True
        at_work, group = _AT_WORK.search(text), _GROUP.search(text)
        if at_work is not None and group is not None:
            add("watchdog.group", (group[2] or group[1], int(at_work[2])), Subject(rank=int(at_work[1])))
        progress = _PROGRESS.search(text)
        if progress is not None:
            who = re.search(r"[Rr]ank (\d+)", text)
            value = (group[2] or group[1] if group else "", int(progress[1]), int(progress[2]))
            add("watchdog.progress", value, Subject(rank=int(who[1]) if who else -1))
            return True
        for kind, pattern in _LINES:
            found = pattern.search(text)
            if found is not None:
                if kind in _FAILURES and level_of(text) is not None:
                    return False  # the program calls it a warning, or information
                add(kind, found[1] if found.groups() else found[0], _about(text))
                return True
        return False


def _about(text: str) -> Subject:
    rank = re.search(r"\b[Rr]ank\s*:?\s*(\d+)", text)
    return Subject(rank=int(rank[1]) if rank else -1)


_FAILURES = frozenset(
    (
        "job.files",
        "job.memory",
        "job.bus-error",
        "job.killed",
        "job.ecc",
        "job.nvlink",
        "job.rendezvous",
        "check.failed",
    )
)
_LINES = (
    ("check.average", re.compile(r"Avg bus bandwidth is ([\d.]+)")),
    ("check.no-module", re.compile(r"No module named '([\w.]+)'")),
    ("check.failed", re.compile(r"(NCCL Test Failed.*|health ?check failed(?!:? +\S*check).*)", re.IGNORECASE)),
    (
        "check.passed",
        re.compile(
            r"(\w+ [Tt]est:? (?:[Ss]ucceeded|[Pp]assed)|[Hh]ealth checks? passed.*|"
            r"Overall system status is healthy)"
        ),
    ),
    ("job.nccl-version", re.compile(r"vLLM is using nccl==([\d.]+)")),
    ("job.custom-allreduce", re.compile(r"(Custom allreduce is disabled.*)")),
    # one address of several that was tried and will be tried again is no failure
    ("job.retry", re.compile(r"\[W\d* .*\[c10d[^\]]*\] (The client socket has failed to connect.*)")),
    (
        "job.rendezvous",
        re.compile(
            r"(RendezvousTimeoutError|RendezvousConnectionError|[Cc]lient socket has (?:timed out|failed).*|"
            r"DistStoreError.*|DistNetworkError.*|connect\(\) timed out\. Original timeout.*|"
            r"server socket has failed to (?:bind|listen).*|"
            r"retrieving ncclUniqueId from \[0\].* got error.*)"
        ),
    ),
    ("nccl.warn", re.compile(r"(fi_getinfo: provider \w+ output empty list)")),
    # NCCL before 2.3 did not write its name
    ("nccl.warn", re.compile(r"misc/\w+\.c[cu]:\d+ WARN (.*)")),
    ("nccl.warn", re.compile(r"(NET/OFI Couldn't find any optimal provider)")),
    ("nccl.warn", re.compile(r"(memlock limit.*|.*allocate some locked memory.*)")),
    ("job.mismatch", re.compile(r"(Detected mismatch between collectives on ranks\..*)")),
    ("job.not-initialized", re.compile(r"((?:CUDA |cuda).*?error\.?\s*:?\s*802.*|system not yet initialized)")),
    ("job.nvlink", re.compile(r"(uncorrectable NVLink error.*)")),
    ("job.ecc", re.compile(r"(uncorrectable ECC error.*)")),
    ("job.files", re.compile(r"(\[Errno 24\] Too many open files|[Tt]oo many open files)")),
    ("job.memory", re.compile(r"(CUDA out of memory.*)")),
    (
        "job.bus-error",
        re.compile(r"(Signal 7 \(SIGBUS\)|killed by signal: Bus error.*|Bus error \(core dumped\))"),
    ),
    ("job.killed", re.compile(r"(Signal (?:9 \(SIGKILL|11 \(SIGSEGV)\).*)")),
    ("job.signal", re.compile(r"(Signal \d+ \(SIG\w+\))")),
    (
        "job.failed",
        re.compile(
            r"(unhandled (?:system|cuda) error.*|ncclSystemError.*|ncclInternalError.*|Test NCCL failure.*)"
        ),
    ),
    ("job.exit", re.compile(r"exitcode\s*:\s*(-?\d+)")),
    ("job.succeeded", re.compile(r"(Application startup complete|Uvicorn running on \S+|The server is fired up)")),
    ("check.ran", re.compile(r"([Hh]ealthcheck)")),
    (
        "job.began",
        re.compile(
            r"(vLLM API server version.*|Initializing an? (?:V\d )?LLM engine|torch/distributed/run\.py:\d+|"
            r"Found nccl from library \S+|"
            r"\[c10d[^\]]*\] The client socket has connected)"
        ),
    ),
)
