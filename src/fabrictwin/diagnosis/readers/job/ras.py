"""NCCL's RAS reports: text of 2.24 on, JSON of 2.28.7 on, events of a monitor (NCCL, src/ras)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^\s*Job summary\s*$|^\s*Communicators?\.{3}|^\s*Group\s+Comms\s+Nodes\s+Ranks|^\s*RAS Monitor Mode|"
    r"^\s*#\d+-\d+ \([0-9a-f]+\) \w+|^\s*(?:DEAD|INCOMPLETE|MISMATCH|TIMEOUT)\s*$|^NCCL version .* compiled with|"
    r"^(?:\[[\d :.-]+\] )?PEER_\w+: |^\s*\"event\": \"PEER_|^\s*Gathering data about the (?:RAS network|NCCL comm)"
)
_GROUP = re.compile(r"\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\d+)\s+([A-Z,]+)\s+([A-Z,]+)\s*$")
_COMM = re.compile(r"\s*#(\d+-\d+) \(([0-9a-f]+)\) (\w+)")
_RANK = re.compile(
    r"Rank (\d+)(?: has status (\w+)| has launched up to (operation \d+)| has (not launched) any operations"
    r"| reported (.+?))?(?: -- (?:GPU (\S+) managed by process (\d+) on node (\S+)|\[.*\]))?$"
)
_RANKS = re.compile(r"(?:The )?([Mm]issing|unknown) ranks?: ([\d, -]+)$")
_SHARED = re.compile(
    r"(\d+) ranks? ha(?:ve|s) (?:status (\w+)|launched up to (operation \d+)|(not launched) any operations)"
    r"|(\d+) ranks? reported (.+)"
)
_EVENT = re.compile(r"(?:\[[\d :.-]+\] )?PEER_(\w+): (?:Process (\d+) on node (\S+) managing GPUs? (\S+)|(\S+))?")
_JSON_LINE = re.compile(r'"(event|host|pid|cuda_devs|addr)": (?:"([^"]*)"|\[([\d, ]*)\]|(\d+))')
# what processes of the job print, by how it begins
_OF_A_JOB = re.compile(
    r"\[(?:default|rank)?\d+\]|\[[EWI]\d{3}|Traceback |.*collective operation timeout|.* NCCL (?:INFO|WARN) "
)
_PROCESS = re.compile(r"\s*Process (\d+) on node (\S+) managing GPUs? (\S+)")
_SECTIONS = ("DEAD", "INCOMPLETE", "MISMATCH", "TIMEOUT")
_AWAY = "missing"
SILENT = ("UNRESPONSIVE", "KEEPALIVE_TIMEOUT", "SEND_STUCK", "INIT_TIMEOUT", "RETRY")
# ncclResult_t (nccl.h) in the words of the text; success and "in progress" are no errors
_RESULTS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}


class RasReport(LineReader):
    """Reads RAS's text."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._comm = self._section = self._state = self._stage = ""
        self._event: dict[str, str] = {}
        self._blank = 0

    def line(self, text: str) -> bool:
        """Take a line; False where the report has ended."""
        bare = text.strip()
        self._blank = 0 if bare else self._blank + 1
        if not bare or set(bare) <= set("=-. []"):
            return self._blank < 4
        if _OF_A_JOB.match(bare):
            return False
        group, comm, process = _GROUP.match(text), _COMM.match(text), _PROCESS.match(text)
        rank, event = _RANK.match(bare), _EVENT.match(bare)
        if event is not None:
            what, pid, host, gpus, address = event.groups()
            _peer_event(self.sink, what, host or address or "", int(pid or 0), gpus or "")
        elif group is not None:
            self.sink.add("ras.group", (int(group[1]), int(group[2]), int(group[6]), group[7], group[8]))
        elif comm is not None:
            self._comm, self._section, self._state = comm[2], comm[3], ""
            self.sink.add("ras.comm", (comm[2], comm[3]))
        elif process is not None:
            kind = "ras.absent" if self._section == "INCOMPLETE" or self._state == _AWAY else "ras.dead"
            self.sink.add(kind, (int(process[1]), process[3]), Subject(process[2], device=f"GPU {process[3]}"))
        elif rank is not None:
            self._rank(rank)
        elif bare in _SECTIONS:
            self._section, self._state = bare, ""
        else:
            self._words(bare)
        return True

    def _rank(self, found: re.Match[str]) -> None:
        """Take what a report says of one rank, which may be of the state that the line before names."""
        number, status, operation, none, error, _, pid, host = found.groups()
        about = Subject(host or "", int(number))
        state = status or operation or none or self._state
        if error or self._section == "ERROR":
            self.sink.add("ras.error", (self._comm, self._stage, error or self._state), about)
        elif self._section == "INCOMPLETE" or state == _AWAY:
            self.sink.add("ras.missing", self._comm, about)
        else:
            if status or operation or none:
                self._shared(state, 1)
            self.sink.add("ras.rank", (self._comm, state, int(pid or 0)), about)

    def _shared(self, state: str, ranks: int) -> None:
        self.sink.add("ras.state", (self._comm, state, ranks))

    def _words(self, bare: str) -> None:
        shared, ranks = _SHARED.match(bare), _RANKS.match(bare)
        if shared is not None:
            count, status, operation, none, _, error = shared.groups()
            self._state = status or operation or none or error
            if error:
                self.sink.add("ras.error", (self._comm, self._stage, error))
            else:
                self._shared(self._state, int(count))
        elif ranks is not None:
            kind, value = ("ras.rank", (self._comm, self._state, 0)), self._comm
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranks[2]):
                for rank in range(int(first), min(int(last or first), int(first) + 10_000) + 1):
                    if ranks[1] == "unknown":
                        self.sink.add(*kind, Subject(rank=rank))
                    else:
                        self.sink.add("ras.missing", value, Subject(rank=rank))
        elif "Communicator ranks have different" in bare or "launched a different number" in bare:
            self.sink.add("ras.differs", (self._comm, "status" if "status" in bare else "counts"))
        elif "error" in bare and (stage := re.match(r"(Initialization|Asynchronous) errors? on (\d+)", bare)):
            self._stage = stage[1].lower()
            self.sink.add("ras.error", (self._comm, self._stage, ""))
        elif bare.startswith(("Missing communicator data from", "The missing process")):
            self._state = _AWAY
        elif "considered dead" in bare:
            self._section = "DEAD"
            found = re.match(r"(\d+)", bare)
            self.sink.add("ras.dead-count", int(found[1]) if found else 1)
        else:
            self._network(bare)

    def _network(self, bare: str) -> None:
        """Take what a report says of RAS's own network, of the job's size, and of events in JSON."""
        if late := re.match(r"(?:Warning: e|E)ncountered (\d+) communication timeout", bare):
            self.sink.add("ras.timeouts", int(late[1]))
        elif less := re.match(
            r"Warning: missing data from (\d+) process.*received from (\d+), expected (\d+)", bare
        ):
            self.sink.add("ras.silent", tuple(int(one) for one in less.groups()))
        elif back := re.match(r"Warning: negative travel times were observed across (\d+)", bare):
            self.sink.add("ras.clocks", int(back[1]))
        elif outlier := re.match(r"Node (\S+) running process(?:es)? ([\d,]+)$", bare):
            self.sink.add("ras.outlier", outlier[2].count(",") + 1, Subject(outlier[1]))
        elif "RAS Monitor Mode" in bare:
            self.sink.add("ras.monitor", True)
        elif re.match(r"\d+\s+\d+\s+\d+\s+\d+\s+\d+$", bare):
            self.sink.add("ras.summary", tuple(int(word) for word in bare.split()))
        elif pair := _JSON_LINE.match(bare):
            self._event[pair[1]] = pair[2] or pair[3] or pair[4] or ""
        elif bare.startswith('"details"') and "event" in self._event:
            event, self._event = self._event, {}
            host, pid = event.get("host") or event.get("addr", ""), event.get("pid", "0")
            _peer_event(
                self.sink, event["event"].removeprefix("PEER_"), host, int(pid or 0), event.get("cuda_devs", "")
            )


def _peer_event(sink: Sink, what: str, host: str, pid: int, gpus: str) -> None:
    kind = "ras.dead" if "DEAD" in what else "ras.event"
    value = (pid, gpus) if kind == "ras.dead" else (what, pid)
    sink.add(kind, value, Subject(host, device=f"GPU {gpus}" if gpus else ""))


def read_json(data: Any, sink: Sink) -> bool:
    """Take a RAS report or event that was parsed from JSON; False where it is neither."""
    if not isinstance(data, Mapping):
        return False
    if isinstance(data.get("event"), str) and isinstance(data.get("peer"), Mapping):
        peer = data["peer"]
        host, devices, pid = str(peer.get("host") or peer.get("addr", "")), peer.get("cuda_devs"), peer.get("pid")
        gpus = ",".join(str(one) for one in devices[:64]) if isinstance(devices, list) else ""
        what = data["event"].removeprefix("PEER_")[:40]
        _peer_event(sink, what, host, pid if isinstance(pid, int) else 0, gpus)
        return True
    comms = data.get("communicators")
    if not isinstance(comms, list):
        return False
    if isinstance(data.get("nccl_version"), str):
        sink.add("nccl.version", data["nccl_version"].split("+")[0])
    for comm in comms[:10_000]:
        if isinstance(comm, Mapping):
            _communicator(comm, sink)
    late = _mapping(data.get("ras")).get("timeouts_count")
    if isinstance(late, int) and late > 0:
        sink.add("ras.timeouts", late)
    return True


def _communicator(comm: Mapping[str, Any], sink: Sink) -> None:
    name = str(comm.get("hash", ""))[:40]
    sink.add("ras.comm", (name, "JSON"))
    for missing in _list(comm.get("missing_ranks")):
        one = _mapping(missing)
        rank, host = one.get("rank", missing), str(one.get("host", ""))
        if isinstance(rank, int):
            sink.add("ras.missing", name, Subject(host, rank))
            if _mapping(one.get("status")).get("considered_dead") or one.get("considered_dead"):
                pid, gpu = one.get("pid"), str(one.get("cuda_dev", ""))
                value = (pid if isinstance(pid, int) else 0, gpu)
                sink.add("ras.dead", value, Subject(host, rank, device=f"GPU {gpu}"))
    for each in _list(comm.get("ranks")):
        if isinstance(each, Mapping) and isinstance(each.get("rank"), int):
            _of_rank(each, name, sink)


def _of_rank(each: Mapping[str, Any], name: str, sink: Sink) -> None:
    about = Subject(str(each.get("host", "")), each["rank"])
    counts = each.get("collective_counts")
    total = sum(v for v in counts.values() if isinstance(v, int)) if isinstance(counts, Mapping) else -1
    status = _mapping(each.get("status"))
    state = str(status.get("init_state", ""))
    sink.add("ras.count", (name, total, state[:40], str(status.get("async_error", ""))[:80]), about)
    for stage, key in (("initialization", "init_state"), ("asynchronous", "async_error")):
        code = status.get(key)
        if isinstance(code, int) and code in _RESULTS:
            sink.add("ras.error", (name, stage, _RESULTS[code]), about)
    if status.get("abort_flag") is True:
        sink.add("ras.rank", (name, "ABORT", 0), about)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value[:100_000] if isinstance(value, list) else []
