"""p2pBandwidthLatencyTest of CUDA's samples: what pairs of GPUs reach, through the host's memory and directly."""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = r"^\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]|^(?:Uni|Bi)directional P2P=(?:En|Dis)abled "
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
