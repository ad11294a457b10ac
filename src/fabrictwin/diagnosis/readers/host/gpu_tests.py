"""Tests of GPUs and their links in one host, in GB/s of 1e9 bytes.

p2pBandwidthLatencyTest and bandwidthTest of CUDA's samples, nvbandwidth (output.cpp, inline_common.h), gpu-burn
(gpu_burn-drv.cpp).
"""

from __future__ import annotations

import re

from fabrictwin.base.errors import shortened
from fabrictwin.diagnosis.evidence import Sink, Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS_PEERS = r"^\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]|^(?:Uni|Bi)directional P2P=(?:En|Dis)abled "
_MATRIX = re.compile(r"(Uni|Bi)directional P2P=(En|Dis)abled .*Bandwidth")
_OTHER = re.compile(
    r"P2P=|P2P Connectivity|\*\*\*NOTE|So you can see|NOTE: The CUDA|Device[:=]|\[P2P|(?:D\\D|GPU|CPU)\s"
)
_ROW = re.compile(r"\d{1,3}(?:\s+\d{1,6}\.\d{1,6}){2,64}$")


class PeerBandwidth(LineReader):
    """Reads the matrices of bandwidths in one direction, GB/s; not latencies, nor sums of both directions."""

    _direct: bool | None = None  # what the rows are of: direct access on, off, or neither

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the test's."""
        bare = text.strip()
        head = _MATRIX.match(bare)
        if head is not None:
            self._direct = head[2] == "En" if head[1] == "Uni" else None
            return True
        if _ROW.match(bare):
            row, *values = bare.split()
            for column, value in enumerate(values):
                if self._direct is not None and str(column) != row:
                    pair = Subject(device=f"GPU {row} to GPU {column}")
                    self.sink.add("p2p.direct" if self._direct else "p2p.staged", float(value), pair)
            return True
        if _OTHER.match(bare):
            self._direct = None if not re.match(r"D\\D", bare) else self._direct
            return True
        return not bare or bool(re.fullmatch(r"[\d\s]+", bare))


OPENS_COPIES = r"^nvbandwidth Version: |^Running \w*(?:memcpy|latency|_sm|_ce)\w*\.\s*$|^\[CUDA Bandwidth Test\]"
_RUNNING = re.compile(r"Running (\w+)\.$")
# a copy that has the link to itself: not those between all and one, nor those in both directions
_ALONE = re.compile(r"(host_to_device|device_to_host|device_to_device)_memcpy_(?:read_|write_)?(?:ce|sm)$")
_HEADED = re.compile(r"memcpy \w+ .*bandwidth \(GB/s\)")
_VALUES = re.compile(r"(\d{1,3})((?:\s+(?:\d{1,7}\.\d{1,6}|N/A)){1,72})$")
_DEVICE = re.compile(r"Device (\d{1,3}): (.{4,80}?)(?: \([0-9a-f]+:[0-9a-f:]+\))?$")
_FAILED = re.compile(r"Invalid value when checking the pattern at")  # nvbandwidth's kernels.cu
_SAMPLE = re.compile(r"(Host|Device) to (Host|Device) Bandwidth, \d+ Device")
_TRANSFER = re.compile(r"(\d{1,12})\s+(\d{1,7}(?:\.\d+)?)$")
_SAID = re.compile(
    r"nvbandwidth Version|Built from Git|MPI version|NOTE: The reported|Performance can vary|CUDA \w+ Version|"
    r"Driver Version|(?:&&&& PERF|SUM|MIN|MAX|AVG) \w+|Waived: |Process \d|\[CUDA Bandwidth|Running on|"
    r"(?:Quick|Range|Shmoo) Mode|(?:PINNED|PAGEABLE) Memory|Transfer Size|Result = |NOTE: The CUDA Samples|"
    r"memory latency|[\d\s]+$|[\w.-]{1,64}$"  # the last is the host's name
)


class GpuCopies(LineReader):
    """Reads what copies reach between host and GPUs, and between pairs of GPUs, one pair at a time."""

    talks = True
    _way = ""  # of the copies whose rows come next
    _are_rates = _is_sample = False
    _device = "0"  # that CUDA's sample runs on

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of these tests'."""
        bare = text.strip()
        running, sample, device = _RUNNING.match(bare), _SAMPLE.match(bare), _DEVICE.match(bare)
        if running is not None:
            alone = _ALONE.match(running[1])
            self._way, self._are_rates, self._is_sample = alone[1] if alone else "", False, False
        elif sample is not None:
            inside = sample[1] == sample[2]  # one GPU's memory
            self._way = "" if inside else f"{sample[1]}_to_{sample[2]}".lower()
            self._are_rates, self._is_sample = False, True
        elif device is not None:
            self._device = device[1]
            self.sink.add("smi.gpu", device[2], Subject(device=f"GPU {device[1]}"))
        elif _HEADED.match(bare):
            self._are_rates = True
        elif (row := _VALUES.match(bare)) is not None:
            self._row(row[1], row[2].split())
        elif (moved := _TRANSFER.match(bare)) is not None and self._is_sample:
            if self._way:
                self.sink.add("gpu.copy", (self._way, float(moved[2])), Subject(device=f"GPU {self._device}"))
        elif _FAILED.search(bare):
            self.sink.add("gpu.wrong", shortened(bare, 120))
        else:
            return not bare or bool(_SAID.match(bare))
        return True

    def _row(self, row: str, values: list[str]) -> None:
        for column, value in enumerate(values):
            rate = 0.0 if value == "N/A" else float(value)
            if not rate or not self._way or not self._are_rates:
                continue
            pair = f"GPU {row} to GPU {column}" if self._way == "device_to_device" else f"GPU {column}"
            self.sink.add("gpu.copy", (self._way, rate), Subject(device=pair))


OPENS_BURN = r"^(?:Using compare file: |Burning for \d+ seconds|Tested \d+ GPUs:|[\d.]+%  proc'd: )"
_PROGRESS = re.compile(r"[\d.]{1,5}%\s+proc'd: (?P<done>[^e]*?)\s+errors: (?P<errors>.*?)(?:\s+temps: .*)?$")
_VERDICT = re.compile(r"GPU (\d{1,3}): (OK|FAULTY)$")
_LISTED = re.compile(r"GPU (\d{1,3}): (.{4,80}) \(UUID: ")
_BURNT = re.compile(
    r"Using compare file|Burning for|Tested \d+ GPUs|Initialized device|Results are \d|Run length not|"
    r"Killing processes|done$|Freed memory|Uninitted|Summary at:|No clients are alive|\(run once|-*$"
)


class GpuBurn(LineReader):
    """Reads gpu-burn: which GPU computed wrongly or lost its process, and how fast each was in the end."""

    talks = True

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of gpu-burn's."""
        bare = text.rstrip().rpartition("\r")[2].strip()
        progress, verdict, listed = _PROGRESS.match(bare), _VERDICT.match(bare), _LISTED.match(bare)
        if progress is not None:
            _keep_progress(self.sink, progress["done"], progress["errors"])
        elif verdict is not None and verdict[2] == "FAULTY":
            self.sink.add("gpu.wrong", "FAULTY", Subject(device=f"GPU {verdict[1]}"))
        elif listed is not None:
            self.sink.add("smi.gpu", listed[2], Subject(device=f"GPU {listed[1]}"))
        return bool(progress or verdict or listed or _BURNT.match(bare))


def _keep_progress(sink: Sink, done: str, errors: str) -> None:
    """Keep a line of progress: rates in Gflop/s and errors, GPUs in their order."""
    for gpu, part in enumerate(re.split(r"\s-\s", done)):
        rate = re.search(r"\((\d{1,9}) Gflop/s\)", part)
        if rate is not None and int(rate[1]):
            sink.add("gpu.flops", float(rate[1]), Subject(device=f"GPU {gpu}"))
    for gpu, part in enumerate(re.split(r"\s-\s", errors)):
        count = re.match(r"\s*(-?\d{1,12})", part)
        if "DIED" in part:
            sink.add("gpu.died", True, Subject(device=f"GPU {gpu}"))
        elif count is not None and int(count[1]) > 0:
            sink.add("gpu.wrong", f"{count[1]} errors", Subject(device=f"GPU {gpu}"))
