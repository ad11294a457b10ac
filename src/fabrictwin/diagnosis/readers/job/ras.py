"""NCCL's RAS reports (ncclras; NCCL user guide, "RAS"): text of 2.24 on, JSON of 2.28.7 on, monitor events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^\s*Job summary\s*$|^\s*Communicators?\.{3}|^\s*Group\s+Comms\s+Nodes\s+Ranks|^\s*RAS Monitor Mode|"
    r"^\s*#\d+-\d+ \([0-9a-f]+\) \w+|^\s*(?:DEAD|INCOMPLETE|MISMATCH|TIMEOUT)\s*$|^NCCL version .* compiled with|"
    r"^(?:\[[\d :.-]+\] )?PEER_\w+: Process \d+ on node"
)
_GROUP = re.compile(r"\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\d+)\s+([A-Z,]+)\s+([A-Z,]+)\s*$")
_MISSING = "missing"
_COMM = re.compile(r"\s*#(\d+-\d+) \(([0-9a-f]+)\) (\w+)")
_RANK = re.compile(
    r"\s*(?:Rank (\d+)|The missing rank: (\d+)|Missing ranks?: ([\d, -]+))"
    r"(?: -- GPU (\S+) managed by process (\d+) on node (\S+))?"
)
_EVENT = re.compile(r"(?:\[[\d :.-]+\] )?PEER_(\w+): Process (\d+) on node (\S+) managing GPUs? (\S+)")
# what processes of the job print, by how it begins
_OF_A_JOB = re.compile(
    r"\[(?:default|rank)?\d+\]|\[[EWI]\d{3}|Traceback |.*collective operation timeout|.* NCCL (?:INFO|WARN) "
)
_PROCESS = re.compile(r"\s*Process (\d+) on node (\S+) managing GPUs? (\S+)")


class RasReport(LineReader):
    """Reads RAS's text."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._comm = self._error = self._state = ""
        self._blank = 0

    def line(self, text: str) -> bool:
        """Take a line; False where the report has ended."""
        add, bare = self.sink.add, text.strip()
        self._blank = 0 if bare else self._blank + 1
        if not bare or set(bare) <= set("=-. []"):
            return self._blank < 4
        if _OF_A_JOB.match(bare):
            return False
        group = _GROUP.match(text)
        comm = _COMM.match(text)
        process = _PROCESS.match(text)
        rank = _RANK.match(text)
        event = _EVENT.match(bare)
        if event is not None:
            what, pid, host, gpus = event.groups()
            kind = "ras.dead" if "DEAD" in what else "ras.event"
            add(kind, (int(pid), gpus), Subject(host, device=f"GPU {gpus}"))
        elif group is not None:
            add("ras.group", (int(group[1]), int(group[2]), int(group[6]), group[7], group[8]))
        elif comm is not None:
            self._comm, self._error, self._state = comm[2], comm[3], ""
            add("ras.comm", (comm[2], comm[3]))
        elif process is not None and self._error in ("DEAD", ""):
            add("ras.dead", (int(process[1]), process[3]), Subject(process[2], device=f"GPU {process[3]}"))
        elif process is not None and self._error == "INCOMPLETE":
            add("ras.absent", (int(process[1]), process[3]), Subject(process[2], device=f"GPU {process[3]}"))
        elif rank is not None:
            self._rank(rank)
        elif bare in ("DEAD", "INCOMPLETE", "MISMATCH", "TIMEOUT"):
            self._error = bare
        else:
            self._words(bare)
        return True

    def _rank(self, found: re.Match[str]) -> None:
        missing = found[2] or found[3]
        if missing:
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", missing):
                for rank in range(int(first), min(int(last or first), int(first) + 10_000) + 1):
                    self.sink.add("ras.missing", self._comm, Subject(rank=rank))
            return
        if self._state == _MISSING:
            self.sink.add("ras.missing", self._comm, Subject(found[6] or "", int(found[1])))
            return
        self.sink.add(
            "ras.rank", (self._comm, self._state, int(found[5] or 0)), Subject(found[6] or "", int(found[1]))
        )

    def _words(self, bare: str) -> None:
        count = re.match(r"(\d+) ranks? ha(?:ve|s) (?:status (\w+)|launched up to operation (\d+))", bare)
        if count is not None:
            self._state = count[2] or f"operation {count[3]}"
            self.sink.add("ras.minority", (self._comm, self._state, int(count[1])))
        elif (
            "different status" in bare
            or "launched a different number" in bare
            or "collective operation counts" in bare
        ):
            kind = "status" if "status" in bare else "counts"
            self.sink.add("ras.differs", (self._comm, kind))
        elif bare.startswith("Missing communicator data from"):
            self._state = _MISSING
        elif "considered dead" in bare:
            self._error = "DEAD"
            found = re.match(r"(\d+)", bare)
            self.sink.add("ras.dead-count", int(found[1]) if found else 1)
        elif "RAS Monitor Mode" in bare:
            self.sink.add("ras.monitor", True)
        elif re.match(r"\d+\s+\d+\s+\d+\s+\d+\s+\d+$", bare):
            self.sink.add("ras.summary", tuple(int(word) for word in bare.split()))


def read_json(data: Any, sink: Sink) -> bool:
    """Take a RAS report or event that was parsed from JSON; False where it is neither."""
    if not isinstance(data, Mapping):
        return False
    if isinstance(data.get("event"), str) and isinstance(data.get("peer"), Mapping):
        peer = data["peer"]
        host, devices = str(peer.get("host", "")), peer.get("cuda_devs")
        gpus = ",".join(str(one) for one in devices[:64]) if isinstance(devices, list) else ""
        pid = peer.get("pid")
        sink.add(
            "ras.dead" if "DEAD" in data["event"] else "ras.event",
            (pid if isinstance(pid, int) else 0, gpus or data["event"]),
            Subject(host, device=f"GPU {gpus}" if gpus else ""),
        )
        return True
    comms = data.get("communicators")
    if not isinstance(comms, list):
        return False
    if isinstance(data.get("nccl_version"), str):
        sink.add("nccl.version", data["nccl_version"].split("+")[0])
    for comm in comms[:10_000]:
        if isinstance(comm, Mapping):
            _communicator(comm, sink)
    return True


def _communicator(comm: Mapping[str, Any], sink: Sink) -> None:
    name = str(comm.get("hash", ""))[:40]
    sink.add("ras.comm", (name, "JSON"))
    for missing in _list(comm.get("missing_ranks")):
        rank = missing.get("rank") if isinstance(missing, Mapping) else missing
        if isinstance(rank, int):
            host = str(missing.get("host", "")) if isinstance(missing, Mapping) else ""
            sink.add("ras.missing", name, Subject(host, rank))
            if isinstance(missing, Mapping) and missing.get("considered_dead"):
                sink.add(
                    "ras.dead",
                    (int(missing.get("pid") or 0), str(missing.get("cuda_dev", ""))),
                    Subject(host, rank),
                )
    for each in _list(comm.get("ranks")):
        if not isinstance(each, Mapping) or not isinstance(each.get("rank"), int):
            continue
        about = Subject(str(each.get("host", "")), each["rank"])
        counts = each.get("collective_counts")
        total = sum(v for v in counts.values() if isinstance(v, int)) if isinstance(counts, Mapping) else -1
        status = each.get("status")
        state = str(status.get("init_state", "")) if isinstance(status, Mapping) else ""
        failed = str(status.get("async_error", "")) if isinstance(status, Mapping) else ""
        sink.add("ras.count", (name, total, state[:40], failed[:80]), about)


def _list(value: Any) -> list[Any]:
    return value[:100_000] if isinstance(value, list) else []
