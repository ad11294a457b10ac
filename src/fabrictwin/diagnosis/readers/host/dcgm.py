"""DCGM: `dcgmi diag` and `dcgmi health --check`, whose cells go on over several rows, and `diag` as JSON.

What a test or a watch found is put together again and looked up in the table of mechanisms, as any message is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fabrictwin.diagnosis.evidence import Place, Sink, Subject
from fabrictwin.diagnosis.mechanisms.table import HARMLESS, mechanism_of
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^[|+]-----  (?:Metadata|Deployment|Integration|Hardware|Stress|Custom)  -+|"  # an excerpt
    r"^\|\s*Diagnostic\s+\|\s*Result\s+\||^\|\s*(?:Overall Health|Health Monitor Report)\b"
)
OPENS_METRICS = r"^# (?:HELP|TYPE) DCGM_FI_|^DCGM_FI_\w+\{"
# what a test that fails without a word of its own was of (DCGM's user guide, diagnostics)
_TESTS = (
    (re.compile(r"(?i)denylist|blacklist|nvml|cuda main|cuda toolkit|software"), "gpu-driver"),
    (re.compile(r"(?i)permission"), "device-permission"),
    (re.compile(r"(?i)persistence|environment"), "host-settings"),
    (re.compile(r"(?i)page retirement|row remap|memory(?! bandwidth)|memtest"), "gpu-memory"),
    (re.compile(r"(?i)graphics process"), "gpu-busy"),
    (re.compile(r"(?i)pcie|pci express"), "pci-errors"),
    (re.compile(r"(?i)nvbandwidth|nvlink"), "nvlink-error"),
    (re.compile(r"(?i)power"), "gpu-power"),
    (re.compile(r"(?i)inforom|diagnostic|stress|eud|bandwidth|pulse|sm "), "gpu-hardware"),
)
SHORT, DEEPEST = 12, 8  # letters of a value that is a word or a number; levels of a report
UNEXPLAINED = 0.7  # of a test that fails and does not say why
_ROW = re.compile(r"\|(?P<name>[^|]*)\|(?P<value>.*)\|\s*$")
_FRAME = re.compile(r"[+|][-=+ ]|\|[^|]*\|\s*$")
_ITEM = re.compile(r"(?:GPU|CPU|Switch|Core)\s?\d+: \w+$")
_RESULT = re.compile(r"(?:Pass|Fail|Skip|Warn) - ")  # of some GPUs, below that of others
_GPU = re.compile(r"\bGPUs?(?: ID)?:? ?(\d+)")


class Dcgm(LineReader):
    """Reads tables of two columns, a message at a time."""

    _name = ""
    _pieces: tuple[str, ...] = ()  # of a message, each as wide as the column or less
    _place: Place | None = None
    _failed: tuple[str, str, Place | None] | None = None  # a test, until a message says why

    def line(self, text: str) -> bool:
        """Take a line; False after the table."""
        row = _ROW.match(text)
        if row is None or set(row["name"].strip()) & set("-+="):
            self._end()
            return bool(_FRAME.match(text))
        name, piece = row["name"].strip(), row["value"][1:-1]
        if name or _ITEM.match(piece.strip()) or _RESULT.match(piece):
            self._end()
            self._name, self._place, self._pieces = name or self._name, self.sink.here(), ()
        self._pieces += (piece,)
        return True

    def _end(self) -> None:
        """Keep what the message says, where it says anything."""
        pieces, self._pieces = self._pieces, ()
        # where a piece fills its column, or is as long as any, a word may go on below
        longest = max((len(one.rstrip()) for one in pieces), default=0)
        full = (one[-1:].strip() or len(one.rstrip()) == longest for one in pieces)
        joined = "".join(
            one.rstrip() + ("" if is_full else " ") for one, is_full in zip(pieces, full, strict=True)
        )
        whole = (joined, " ".join(pieces))
        said = [" ".join(one.split()) for one in whole if one.strip()]
        told = [*said, *(f"| {self._name} | {one}" for one in said)]
        text, mechanism = next(((one, found) for one in told if (found := mechanism_of(one))), ("", None))
        if (
            said
            and re.match(r"(?:GPU ?\d+: )?Fail\b", said[0])
            and (mechanism is None or mechanism.sure < UNEXPLAINED)
        ):
            if self._failed is not None and self._failed[0] != self._name:
                self._flush()  # another test
            self._failed = (self._name, said[0], self._place)
            return
        if not re.match(r"Warning|Error|Info", self._name):
            self._flush()
        elif mechanism is not None and mechanism.cause != HARMLESS:
            self._failed = None  # the message says why
        if mechanism is None or mechanism.cause == HARMLESS:
            return
        gpu = _GPU.search(text) or _GPU.search(self._name)
        about = Subject(device=f"GPU {gpu[1]}" if gpu else "")
        self.sink.add("line.known", (*mechanism.told(text[:300], -1.0), 0.0), about, place=self._place)

    def _flush(self) -> None:
        """Keep a test that failed, where no message behind it says why."""
        if self._failed is not None:
            _failed(self.sink, *self._failed)
        self._failed = None

    def close(self) -> None:
        """Keep the last message; a table without any is evidence too."""
        self._end()
        self._flush()
        self.sink.add("dcgm.read", True, place=Place(self.sink.file, 0))


def _failed(sink: Sink, test: str, said: str, place: Place | None) -> None:
    """Keep a test that failed and says no more."""
    cause = next((cause for pattern, cause in _TESTS if pattern.search(test)), "")
    if cause:
        gpu = _GPU.search(said)
        about = Subject(device=f"GPU {gpu[1]}" if gpu else "")
        value = (cause, f"DCGM: {test}: {said}"[:200], -1.0, UNEXPLAINED, "", "", 0.0)
        sink.add("line.known", value, about, place=place)


def read_json(data: Mapping[str, Any], sink: Sink) -> bool:
    """Take `dcgmi diag -j`, `health -j` or `nvlink -e -j`, parsed; False where it is none."""
    body = data.get("body")
    if isinstance(body, Mapping) and any(re.match(r"Link \d|Overall Health|GPU", str(key)) for key in body):
        sink.add("dcgm.read", True)
        _read_body(body, "", sink)
        return True
    run = next((data[key] for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic") if key in data), None)
    if not isinstance(run, Mapping):
        return False
    sink.add("dcgm.read", True)
    ended = run.get("runtime_error")
    if isinstance(ended, str):
        _not_run(sink, ended[:300])
    groups = run.get("test_categories")
    for group in groups if isinstance(groups, list) else ():
        tests = group.get("tests") if isinstance(group, Mapping) else None
        for test in tests if isinstance(tests, list) else ():
            if isinstance(test, Mapping):
                _read_test(test, sink)
    return True


_LINK_ERRORS = re.compile(r"(CRC (?:Data|FLIT)|Replay|Recovery) Error", re.IGNORECASE)


def _read_body(body: Mapping[str, Any], within: str, sink: Sink, depth: int = 0) -> None:
    """Take values by their names, those of a GPU or a link below it."""
    for name, node in body.items():
        if not isinstance(node, Mapping) or depth > DEEPEST:
            continue
        value = str(node.get("value", ""))[:300]
        error = _LINK_ERRORS.match(str(name))
        told = mechanism_of(f"{name}: {value}") if len(value) > SHORT else None
        if error is not None and re.fullmatch(r"\d{1,15}", value) and int(value):
            sink.add("nvlink.errors", (error[1].lower(), int(value)), Subject(device=within or "NVLink"))
        elif told is not None and told.cause != HARMLESS:
            sink.add("line.known", (*told.told(f"{name}: {value}", -1.0), 0.0), Subject(device=within))
        children = node.get("children")
        if isinstance(children, Mapping):
            _read_body(children, f"{within} {name}".strip()[:60], sink, depth + 1)


def _not_run(sink: Sink, said: str) -> None:
    """Keep why a diagnostic did not run."""
    told = mechanism_of(said)
    if told is not None and told.cause != HARMLESS:
        sink.add("line.known", (*told.told(said, -1.0), 0.0))
    else:
        sink.add("line.unknown", ("error", said, -1.0, 0.0))


def _read_test(test: Mapping[str, Any], sink: Sink) -> None:
    name = str(test.get("name", ""))[:80]
    results = test.get("results")
    summary = test.get("test_summary")
    of_all = summary.get("warnings", ()) if isinstance(summary, Mapping) else ()
    for result in results if isinstance(results, list) else ():
        if not isinstance(result, Mapping) or str(result.get("status", "")).lower() not in ("fail", "warn"):
            continue
        number = result.get("gpu_id", result.get("gpu_ids", result.get("entity_id", "")))
        warnings = result.get("warnings") or of_all or []
        warnings = warnings if isinstance(warnings, list) else [warnings]
        said = [str(one.get("warning", "") if isinstance(one, Mapping) else one)[:300] for one in warnings]
        told = next(((text, found) for text in said if (found := mechanism_of(text))), None)
        about = Subject(device=f"GPU {number}" if str(number)[:1].isdigit() else "")
        if told is not None and told[1].cause != HARMLESS:
            sink.add("line.known", (*told[1].told(told[0], -1.0), 0.0), about)
        elif str(result["status"]).lower() == "fail":
            _failed(sink, name, f"Fail - GPU: {number} {' '.join(said)}", None)


class Metrics(LineReader):
    """Reads DCGM's fields as its exporter hands them to Prometheus (dcgm_fields.h)."""

    _VALUE = re.compile(r"DCGM_FI_(?:DEV_)?(\w+)\{(.*)\} (\d{1,18})(?:\.0+)?(?: \d+)?$")  # a blank has 19 digits
    _LINKS = re.compile(r"NVLINK_(CRC_FLIT|CRC_DATA|REPLAY|RECOVERY)_ERROR_COUNT_(TOTAL|L\d+)$")

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the exporter's."""
        bare = text.strip()
        found = self._VALUE.match(bare)
        if found is None:
            return not bare or bare.startswith(("#", "DCGM_FI_", "DCGM_EXP_"))
        name, value = found[1], int(found[3])
        gpu = re.search(r"\bgpu=\"(\w+)\"", found[2])
        about = Subject(device=f"GPU {gpu[1]}" if gpu else "a GPU")
        link = self._LINKS.match(name)
        if not value:
            return True
        if name == "XID_ERRORS":
            self.sink.add("xid", value, about)
        elif name == "ROW_REMAP_FAILURE":
            self.sink.add("smi.remap-failed", True, about)
        elif name in ("ROW_REMAP_PENDING", "RETIRED_PENDING"):
            self.sink.add("smi.remap-pending", True, about)
        elif name == "ECC_DBE_VOL_TOTAL":
            self.sink.add("smi.uncorrected", ("volatile", value), about)
        elif link is not None:
            self.sink.add("nvlink.errors", (link[1].replace("_", " ").lower(), value), about)
        return True

    def close(self) -> None:
        """Say that GPUs were looked at."""
        self.sink.add("dcgm.read", True, place=Place(self.sink.file, 0))
