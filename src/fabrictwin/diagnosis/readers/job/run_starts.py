"""Where runs of jobs begin in a log that holds several: what shells, launchers and programs print first.

`set -x` and prompts of shells before a launcher; torchrun's warning of OMP_NUM_THREADS, DeepSpeed's command,
Megatron's world size, nccl-tests' head, the arguments of vLLM and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

_LAUNCH = r"(?:\S*/)?(?:torchrun|srun|mpirun|mpiexec|deepspeed|accelerate|vllm|ray|python[\d.]*) "
_BEGINS = re.compile(
    rf"^\s*\++ (?:\w+=\S+ )*{_LAUNCH}|^[\w.@:~/()\[\]-]{{1,60}} ?[$#] (?:\w+=\S+ )*{_LAUNCH}|"
    r"# nThread \d+ nGpus|vLLM API server version|server_args=ServerArgs\(|\[runner\.py:\d+:main\] cmd = |"
    r"Setting OMP_NUM_THREADS environment variable|^using world size: \d"
)
_SIGNS = (
    b"+ ",
    b"$ ",
    b"# ",
    b"API server version",
    b"ServerArgs(",
    b"runner.py",
    b"OMP_NUM_THREADS",
    b"world size:",
)
MOST = 1_000


class RunStarts:
    """Begins of runs, and whether each worked."""

    def __init__(self) -> None:
        self._begins: list[tuple[int, int]] = []  # lines that begin a run, and the last sign of work before each

    def line(self, raw: bytes, text: str, number: int, worked: int) -> None:
        """Take a line, by its number, and the number of the last line that showed work."""
        if any(map(raw.__contains__, _SIGNS)) and len(self._begins) < MOST and _BEGINS.search(text[:400]):
            self._begins.append((number, worked))

    def runs(self, end: int, worked: int) -> Iterator[tuple[int, int, float]]:
        """Yield first line, last line and 1 where it worked of each; none where fewer than two began."""
        begins = [*self._begins, (end + 1, worked)]
        if len(begins) < 3:
            return
        for (begin, _), (following, sign) in pairwise(begins):
            yield begin, following - 1, float(sign >= begin)
