"""Tables, connections and JSON of perftest (src/perftest_parameters.c), by the names of its columns.

Rates are kept in Gb/s; perftest prints MiB/s unless asked for Gb/s. Rows of a test that runs on
(`--run_infinitely`) have one size; of a bidirectional one both directions are summed, and the two halves that
`--report-both` adds are passed over. Of JSON, which does not say its unit, the rate of messages tells it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

_TEST = re.compile(
    r"((?:RDMA_(?:Write|Read)|Send|Atomic|Write|Read)(?:_\w+| CMP_AND_SWAP| FETCH_AND_ADD)?"
    r"(?: Bidirectional)?(?: Post List)? (?:BW|Latency)) (?:forwarding )?(?:Multicast )?Test$"
)
OPENS = (
    r"^\s*(?:RDMA_|Send|Atomic |Write |Read ).*(?:BW|Latency) (?:forwarding )?(?:Multicast )?Test\s*$|"
    r"^\s*#bytes\s+(?:#sl\s+)?#iterations|^\s*#flows\s+fs_"
)
_OPTION = re.compile(r"([A-Za-z][\w. *]*?)\s*:\s+(\S+)")
_COLUMN = re.compile(
    r"#bytes|#flows|#sl|#iterations|BW (?:peak|average|Port\d)\[[\w/]+\]|MsgRate(?: Port\d)?\[\w+\]|"
    r"CPU_Util\[%+\]|[\d.]+% percentile\[\w+\]|(?:fs_\w+|t_\w+)\[\w+\]|fps\[[\w ]+\]|tps average"
)
_NUMBER = re.compile(r"-?(?:\d{1,19}(?:\.\d{0,9})?|inf|nan)")
_ADDRESS = re.compile(r"(local|remote) address: LID ")
_COUNTER = re.compile(r"((?:hw_)?counters/)?(\w+)=(\d{1,20})$")
_MIB_TO_GBPS = 8 * 2**20 / 1e9
_GBPS = 8e-3  # of a million messages a second, for each byte
MOST_SAMPLES = 100_000  # of a test that runs on
FEWEST_SAMPLES = 5  # that a median means something of
SUMMED = ("Bidirectional", 2)  # directions that one figure counts


@dataclass(slots=True)
class _Run:
    """A test, from its head to the next one's."""

    test: str = ""
    device: str = ""
    connection: str = ""
    ways: int = 1  # ports and directions that one figure counts
    columns: list[str] = field(default_factory=list)
    samples: dict[int, list[float]] = field(default_factory=dict)  # rates by size, in Gb/s
    typical: dict[int, float] = field(default_factory=dict)  # latencies by size, in microseconds


class Perftest(LineReader):
    """Reads the output of ib_write_bw and its kin."""

    talks = True

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._run, self._runs = _Run(), 0
        self._ethernet, self._side, self._is_half = False, "", False

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        text = text.strip()
        if not text or set(text) <= set("-*") or text.startswith("*"):
            return True
        test = _TEST.match(text)
        if test is not None:
            self._begin(test[1])
        elif text.startswith(("#bytes", "#flows")):
            self._run.columns = _COLUMN.findall(text)
        elif text in ("Local results:", "Remote results:"):
            self._is_half = True
        elif re.match(r"\d+, [\d.]|#, (?:usec|cycles)$", text):  # each iteration, sorted or not
            return True
        elif self._run.columns and text[0].isdigit():
            return self._row(text.split())
        elif _COUNTER.match(text):
            self._counter(text)
        elif ":" in text:
            self._options(text)
        else:
            return False
        return True

    def _begin(self, test: str) -> None:
        self._end()
        self._run = _Run(test, ways=SUMMED[1] if SUMMED[0] in test else 1)
        self._is_half = False

    def _options(self, text: str) -> None:
        add, run = self.sink.add, self._run
        for name, value in _OPTION.findall(text):
            if name == "Device":
                run.device = value
            elif name == "Dual-port":
                run.ways *= 2 if value == "ON" else 1
            elif name == "Number of qps":
                run.connection = value
            elif name == "Connection type":
                run.connection += f" {value}"
            elif name in ("Mtu", "Link type", "Transport type", "PCIe relax order"):
                add("perftest.option", (name, value), Subject(device=run.device))
                self._ethernet = value == "Ethernet" if name == "Link type" else self._ethernet
            elif name == "GID" and self._ethernet and self._side:
                kind = "perftest.gid" if self._side == "local" else "perftest.peer-gid"
                add(kind, value, Subject(device=run.device))
        address = _ADDRESS.match(text)
        self._side = address[1] if address is not None else self._side if text.startswith("GID") else ""

    def _counter(self, text: str) -> None:
        found = _COUNTER.match(text)
        if found is not None and int(found[3]):
            self.sink.add("port.counter", (found[2], int(found[3])), Subject(device=self._run.device))

    def _row(self, words: Sequence[str]) -> bool:
        if not all(_NUMBER.fullmatch(word) for word in words):
            return False
        run = self._run
        values = dict(zip(run.columns, map(float, words), strict=False))
        size = int(values.get("#bytes", 0))
        rate = next((_in_gbps(name, value) for name, value in values.items() if name.startswith("BW av")), None)
        # of a histogram's mean the median is better, which a test of a given time has not
        latency = values.get("t_typical[usec]", values.get("t_avg[usec]"))
        if rate is not None and not self._is_half and math.isfinite(rate):
            self._rate(size, rate)
        elif latency is not None and math.isfinite(latency):
            self._latency(size, latency)
        return True

    def _rate(self, size: int, rate: float) -> None:
        run = self._run
        samples = run.samples.setdefault(size, [])
        if len(samples) < MOST_SAMPLES:
            samples.append(rate)
        if len(samples) == 1:
            self.sink.add("perftest.rate", (run.test, size, round(rate, 3), run.ways), Subject(device=run.device))

    def _latency(self, size: int, latency: float) -> None:
        run = self._run
        run.typical[size] = latency
        self.sink.add("perftest.latency-us", (run.test, size, latency), Subject(device=run.device))

    def _end(self) -> None:
        """Keep what a run reached at its largest size, or at its smallest where it measured latencies."""
        run = self._run
        if not run.samples and not run.typical:
            return
        self._runs += 1
        add, about, name = self.sink.add, Subject(device=run.device), f"{self.sink.file} {self._runs}"
        if run.samples:
            size = max(run.samples)
            samples = run.samples[size]
            usual = median(samples)
            add("perftest.run", (run.test, size, round(usual, 3), run.connection, name), about)
            if len(samples) >= FEWEST_SAMPLES:
                add("perftest.ran-on", (run.test, size, min(samples), round(usual, 3), len(samples)), about)
        if run.typical:
            size = min(run.typical)
            add("perftest.typical", (run.test, size, run.typical[size], run.connection, name), about)

    def read_json(self, document: Mapping[str, Any]) -> bool:
        """Take a document that `--out_json` wrote; False where it is none."""
        told, results = document.get("test_info"), document.get("results")
        if not isinstance(told, Mapping) or not isinstance(results, Mapping) or "test" not in told:
            return False
        self._begin(re.sub(r"_(?=(?:Bidirectional|Post_List|BW|Latency)_)|_Test$", " ", str(told["test"])).strip())
        for key, value in list(told.items())[:99]:
            name = str(key).replace("_", " ").replace("Dual port", "Dual-port")
            if isinstance(value, str | int):
                self._options(f"{name} : {str(value)[:40]}")
        number = {str(key): value for key, value in results.items() if isinstance(value, int | float)}
        size = int(number.get("MsgSize", 0))
        if "BW_average" in number:
            self._rate(size, _of_message_rate(number, size))
        elif "t_typical" in number or "t_avg" in number:
            self._latency(size, float(number.get("t_typical", number.get("t_avg", 0))))
        self.close()
        return True

    def close(self) -> None:
        """Keep the last run."""
        self._end()
        self._run = _Run()


def _in_gbps(column: str, rate: float) -> float:
    return rate if "Gb/sec" in column else rate * _MIB_TO_GBPS


def _of_message_rate(number: Mapping[str, float], size: int) -> float:
    """Return the rate in Gb/s: of the two units that it may be in the one that the messages' rate confirms."""
    rate = float(number["BW_average"])
    expected = float(number.get("MsgRate", 0.0)) * size * _GBPS
    return min((rate, rate * _MIB_TO_GBPS), key=lambda one: abs(one - expected)) if expected else rate


def mended(data: bytes) -> bytes:
    """Return JSON of a test of service levels, whose writer leaves a key without its quotes, as it was meant."""
    return re.sub(rb"(?m)^sl: (?=\d)", b'"sl": ', data) if b'"test_info"' in data else data
