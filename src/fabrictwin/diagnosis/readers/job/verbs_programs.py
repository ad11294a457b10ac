"""What programs over verbs say when a call fails: UCX, NVSHMEM, Mooncake, MSCCL++ and perftest before its table.

They name the verb and the errno, or the status of a completion in words (`ibv_wc_status_str`; UCX's
ib_mlx5_log.c). A memory region that cannot be registered is told apart by whether the program has just taken a
buffer of a GPU: then the module that lets adapters reach GPU memory is absent, else too little memory may be
locked. Completions that libmlx5 dumps have their syndrome in the last row (mlx5's `mlx5_err_cqe`).
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"ibv_modify_qp\b.* failed|modify (?:the )?QP .{0,40}to (?:RTR|RTS|INIT)|Unable to Connect the HCA's|"
    r"[Tt]ransport retry count(?:er)? exceeded|RNR retry counter exceeded|[Rr]eceiver?[- ]not?[- ]ready retry|"
    r"\(synd 0x[0-9a-f]+ vend 0x[0-9a-f]+|ibv_(?:reg_\w+|create_\w+)\(.*failed|non-zero status: \d+ ibv_|"
    r"Couldn't allocate MR|neither nv_peer_mem, or nvidia_peermem|Port number \d+ state is|initializing CUDA$|"
    r"^creating CUDA Ctx$|allocated GPU buffer|NET/IB\w* ?: ?Got (?:completion|async)|"
    r"UCX +ERROR .*[Tt]oo many open files|"
    r"mlx[45]: \S+: got completion with error:|"
    r"Completion with error at|Failed status \d+:|Couldn't get context for the device"
)
_WORDS = re.compile(
    OPENS.replace(r"|initializing CUDA$", "").replace(r"|^creating CUDA Ctx$|allocated GPU buffer", "")
    + r"|Unable to (?:create|init|perform)|Couldn't (?:create|set|read|get)|[Ff]ailed to create"
)
_GPU_BUFFER = re.compile(
    r"initializing CUDA|creating CUDA Ctx|allocated GPU buffer|GPU buffer of a|cuMemAlloc\(\)"
)
_HOST = re.compile(r"\[([A-Za-z][\w.-]*):\d+ ?(?::\d+)")
_ADAPTER = re.compile(r"\b(mlx\d_\w+|irdma\d+|bnxt_re\d+|rocep\w+|ibp\w+|efa_\d+)\b")
# libmlx5's dump of a completion, 64 bytes in four rows: the vendor's syndrome is byte 54, the syndrome byte 55
_DUMPS = re.compile(r"mlx[45]: (\S+): got completion with error:")
_CQE = re.compile(r"\s*[0-9a-f]{8} [0-9a-f]{4}([0-9a-f]{2})([0-9a-f]{2}) [0-9a-f]{8} [0-9a-f]{8}\s*")
_CQE_ROWS = 4
_NUMBER = re.compile(r"0x[0-9a-fA-F]{3,}|\b\d{4,}\b")
NAME = "verbs-program"


class VerbsPrograms(LineReader):
    """Reads failing calls of programs that use verbs themselves."""

    _of_gpu = False  # the buffer at hand lies in a GPU
    _dumping = ""  # the host whose completion is being dumped
    _rows = 0  # that have still to come

    def line(self, text: str) -> bool:
        """Take a line; False where it tells of no failed call."""
        row = _CQE.fullmatch(text.rstrip("\n")) if self._rows else None
        if row is not None:
            self._rows -= 1
            if not self._rows:
                status = f"error cqe: syndrome 0x{row[2]}, vendor's 0x{row[1]}"
                self.sink.add("verbs.failed", status, Subject(self._dumping))
            return True
        begins = _DUMPS.search(text)
        self._dumping, self._rows = (begins[1], _CQE_ROWS) if begins is not None else ("", 0)
        if begins is not None:
            return True
        if _GPU_BUFFER.search(text):
            self._of_gpu = True
            return True
        said = _WORDS.search(text)
        if said is None:
            return False
        host, adapter = _HOST.search(text), _ADAPTER.search(text)
        about = Subject(host[1] if host else "", device=adapter[1] if adapter else "")
        words = _NUMBER.sub("#", text.strip())[:300]
        if "allocate MR" in words and self._of_gpu:
            words = f"{words}, of a GPU buffer"
        self.sink.add("verbs.failed", words, about)
        return True
