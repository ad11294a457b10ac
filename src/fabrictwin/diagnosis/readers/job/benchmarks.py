"""Tables of nccl-tests (src/util.cu, src/common.cu), row by row.

Rows may be split by lines of NCCL's log that another rank wrote in between; the halves are joined. Bandwidths are
GB/s of 1e9 bytes.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader
from fabrictwin.tools.nccl_tests.unnamed_tests import Row, test_of

_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+(?P<pid>\d+) on\s+(?P<host>\S+) device\s+(?P<device>\d+) "
    r"\[[\w:.]+\]\s+(?P<gpu>.*\S)"
)
_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+([a-z]\w*)\s+(.*)")
ROW_BEGINS = re.compile(
    r"^\s*\d+\s+\d+\s+(?:float|double|half|bfloat16|u?int\d+|fp8_\w+|f8\w+)\b[^:]*?"
    r"(?=\s*[A-Za-z][\w.-]*:\d+:\d+ \[|\s+\d[\w.-]*:\d+:\d+ \[|$)"
)
# a launcher's name of the rank before each piece that it writes: its rows have several
_TAG = re.compile(r"(?<!\S)\[\d{1,6}\](?=\s)|(?<=\d)\[\d{1,6}\](?=\s)")
COLUMNS_WITH_ROOT = 9  # numbers of a row: the root, and time, two rates and wrong ones, twice
OPENS_NCCL_TESTS = (
    r"^# (?:nThread \d+ nGpus|nccl-tests version|Collective test starting)|^#\s+size\s+count\s+type|"
    r"^# (?:Out of bounds values|Avg bus bandwidth)\s*:|^#\s+Rank\s+\d+ .*Pid\s+\d+ on |"
    # the rest of a table whose head was left out; types are rarer in other lines than operations
    r"^\s*\d+\s+\d+\s+(?:float|double|half|bfloat16|int8|uint8|int32|uint32|int64|uint64|fp8_e4m3|fp8_e5m2|f8e4m3|f8e5m2)"
    r"\s+(?:sum|prod|max|min|avg|mulsum|none)\s"
)


class NcclTests(LineReader):
    """Reads nccl-tests' output."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.test, self.ranks = "", 0
        self.redop = self.root = False
        self.is_headed = False
        self._half = ""
        self._hosts: dict[str, None] = {}
        self._first = ""  # the process that said it is rank 0, until a row comes
        self._most = self._rows = 0  # ranks of the largest run, rows of all
        self._best: tuple[str, int, float] = ("", 0, 0.0)  # the largest size of the run that is being read

    def half(self, text: str) -> None:
        """Keep the first part of a row that a line of the log broke off."""
        self._half = text.rstrip("\n")

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the table's."""
        if self._half and not text.lstrip().startswith("#"):
            text, self._half = f"{self._half} {text}", ""
        if text.lstrip().startswith("#"):
            return self._comment(text.strip())
        return self._row(text)

    def _comment(self, text: str) -> bool:
        add = self.sink.add
        rank = _RANK.match(text)
        if rank is not None:
            if int(rank[1]) == 0:
                self._end_run()
                # one that lists several ranks and no row may have hung, and been started again
                if self._first and self._first != rank["pid"] and self.ranks == 1:
                    add("bench.alone", True)
                self._first = rank["pid"]
                self.ranks = 0
            self.ranks = max(self.ranks, int(rank[1]) + 1)
            self._most = max(self._most, self.ranks)
            self._hosts[rank["host"]] = None
            add("bench.gpu", rank["gpu"], Subject(rank["host"], device=rank["device"]))
            add("bench.rank", int(rank[1]), Subject(rank["host"], int(rank[1])))
            return True
        found = re.search(r"Collective test starting: (\w+)", text)
        if found is not None:
            self._end_run()
            self.test, self.ranks = found[1], 0
        elif re.match(r"#\s+size\s+count\s+type", text):
            self.redop, self.root, self.is_headed = " redop" in text, " root" in text, True
        else:
            more = re.match(r"#\s+\.\.\. and (\d+) more", text)
            average = re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", text)
            wrong = re.search(r"Out of bounds values\s*:\s*(\d+)\s+(\w+)", text)
            if more is not None:
                self.ranks += int(more[1])
                self._most = max(self._most, self.ranks)
            elif average is not None:
                add("bench.average", float(average[1]))
            elif wrong is not None:
                add("bench.wrong", int(wrong[1]))
        return True

    def _row(self, text: str) -> bool:
        found = _ROW.match(_TAG.sub(" ", text) if "[" in text else text)
        if found is None:
            return False
        self._first = ""
        size, count, rest = int(found[1]), int(found[2]), found[4].split()
        numbers = [word for word in rest if re.fullmatch(r"-?[\d.]{1,30}(?:e[+-]?\d{1,2})?|N/A", word)]
        rooted = self.root if self.is_headed else len(numbers) == COLUMNS_WITH_ROOT
        root = None
        if rooted and numbers and re.fullmatch(r"-?\d{1,9}", numbers[0]):
            root, numbers = int(numbers[0]), numbers[1:]
        try:
            time, alg, bus = (float(number) for number in numbers[:3])
        except ValueError:
            return False
        inside = float(numbers[6]) if len(numbers) >= 7 and numbers[6] != "N/A" else bus
        wrong = sum(int(float(one)) for one in (*numbers[3:4], *numbers[7:8]) if one != "N/A")
        if size:
            self._rows += 1
            reduces = self.redop and rest[0] != "none"
            row = Row(size, count, alg, bus, reduces, root, in_place_checked=numbers[-1] != "N/A")
            test = self.test or test_of(row, self.ranks)
            self.sink.add("bench.row", (test, self.ranks, size, time, bus, max(bus, inside)))
            if size >= self._best[1]:
                self._best = (test, size, max(bus, inside))
            if wrong and (self.test or len(numbers) >= 8):
                self.sink.add("bench.wrong", wrong)
        return True

    def _end_run(self) -> None:
        """Keep what a run reached at its largest size, and on which hosts."""
        test, size, rate = self._best
        if size and self._hosts:
            self.sink.add(
                "bench.run",
                (f"{self.sink.file}:{self.sink.number}", test, size, rate, self.ranks, *sorted(self._hosts)),
            )
        self._hosts, self._best = {}, ("", 0, 0.0)

    def close(self) -> None:
        """Keep the last run."""
        self._end_run()
        if self._most == 1 and self._rows:
            self.sink.add("bench.single", self._rows)
