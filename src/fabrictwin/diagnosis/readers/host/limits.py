"""Limits and settings of a host: `ulimit -a`, limits.conf, `df` of /dev/shm, modules, variables.

And the kernel's command line.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^(?:\*|@?[\w.-]+)\s+(?:soft|hard|-)\s+(?:memlock|nofile|nproc|stack)\s+\S+\s*$|"  # limits.conf
    r"^max locked memory\s|^\s*core file size\s|^Max locked memory\s|^(?:shm|tmpfs)\s.*\s/dev/shm$|^BOOT_IMAGE=|"
    # of a shell, or of a launcher's command, which sets them for what it starts
    r"^(?:[$#] |export )?NCCL_\w+=|\s-x NCCL_\w+=|"
    r"^nvidia_peermem\s|^(?:mlx5_ib|ib_uverbs)\s+\d+|^Module\s+Size\s+Used by|"
    r"^MAX_ACC_OUT_READ|"
    r"^\s*(?:MAX_ACC_OUT_READ|PCI_WR_ORDERING|ADVANCED_PCI_SETTINGS|ROCE_CC_PRIO_MASK\w*)\s|^RoCE v[12]$|"
    r"^cma_roce_mode|^● ?nvidia-fabricmanager|nvidia-fabricmanager\.service(?!: )"
)

_SETS = re.compile(r"(?:[$#] |export )?NCCL_\w+=|(?:.{0,400}\s)??-x NCCL_\w+=")
# a row of /etc/security/limits.conf: for whom, soft or hard, of what, how much
_GIVEN = re.compile(r"(?:\*|@?[\w.-]+)\s+(?:soft|hard|-)\s+(\w+)\s+(\S{1,20})\s*$")
_VARIABLE = re.compile(r"(?:^|\s)(NCCL_\w+)=([^\s;]*)")


class Limits(LineReader):
    """Reads what a host says of its limits and settings."""

    _modules: set[str] | None = None
    _is_whole = False  # the list has its head

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of these."""
        bare = text.strip()
        if not bare:
            return True
        if self._module(bare) or self._limit(bare) or self._setting(bare):
            return True
        return bool(
            re.match(
                r"[\w ,/()-]{4,40}\s+\(?[\w./, -]+\)?\s+(?:unlimited|\d+)$|Filesystem|Limit\s|\w+ +\d+ +\d+", bare
            )
        )

    def _module(self, bare: str) -> bool:
        if re.match(r"Module\s+Size\s+Used by", bare):
            self._modules, self._is_whole = set(), True
            return True
        row = re.match(r"(\w+)\s+\d+\s+-?\d+", bare)
        if row is not None and (self._modules is not None or row[1] in ("nvidia_peermem", "mlx5_ib", "ib_uverbs")):
            self._modules = self._modules if self._modules is not None else set()
            self._modules.add(row[1])
            return True
        return False

    def _limit(self, bare: str) -> bool:
        locked = re.match(r"max locked memory\s+\(kbytes, -l\) (\S+)|Max locked memory\s+(\S+)", bare)
        if locked is not None:
            value = locked[1] or locked[2]
            factor = 1024 if locked[1] else 1
            self.sink.add(
                "limit.locked", -1 if value == "unlimited" else int(value) * factor if value.isdigit() else -1
            )
            return True
        files = re.match(r"open files\s+\(-n\) (\d{1,9})$|Max open files\s+(\d{1,9})\s", bare)
        if files is not None:
            self.sink.add("limit.files", int(files[1] or files[2]))
            return True
        given = _GIVEN.match(bare)
        if given is not None:
            if given[1] == "memlock":
                self.sink.add("limit.locked", int(given[2]) * 1024 if given[2].isdigit() else -1)
            elif given[1] == "nofile" and given[2].isdigit():
                self.sink.add("limit.files", int(given[2][:9]))
            return True
        shared = re.match(r"(?:shm|tmpfs)\s+([\d.]+)([KMGT]?)\s.*/dev/shm$", bare)
        if shared is not None:
            size = float(shared[1].strip(".") or 0) * 1024 ** ("KMGT".index(shared[2]) + 1 if shared[2] else 1)
            self.sink.add("limit.shm", int(size))
            used = re.search(r"\s(\d{1,3})%\s+/dev/shm$", bare)
            if used is not None and int(used[1]) >= 99:
                self.sink.add("limit.shm-full", int(used[1]))
            return True
        return False

    def _setting(self, bare: str) -> bool:
        if _SETS.match(bare):
            for name, value in _VARIABLE.findall(bare):
                self.sink.add("nccl.setting", (name, value.strip("'\"")[:200]))
            return True
        if bare.startswith("BOOT_IMAGE=") or "root=" in bare[:200]:
            iommu = re.findall(r"\b((?:intel_|amd_)?iommu=\S+)", bare)
            self.sink.add("kernel.cmdline", " ".join(iommu))
            return True
        nic = re.match(r"(MAX_ACC_OUT_READ|PCI_WR_ORDERING)\s+(\S+)", bare)
        if nic is not None:
            self.sink.add("nic.setting", (nic[1], nic[2]), Subject())
            return True
        if bare in ("RoCE v1", "IB/RoCE v1"):
            self.sink.add("roce.mode", 1)
            return True
        if bare == "RoCE v2":
            self.sink.add("roce.mode", 2)
            return True
        if re.match(r"Job for nvidia-fabricmanager\.service failed", bare):
            self.sink.add("fabricmanager.state", "failed")
            return True
        state = re.match(r"Active: (\w+)", bare)
        if state is not None:
            self.sink.add("fabricmanager.state", state[1])
            return True
        if re.search(r"\[\d+\]: ", bare):
            return False  # of the journal
        return "fabricmanager" in bare or bare.startswith("Loaded:")

    def close(self) -> None:
        """Keep whether a list of modules holds what GPUDirect RDMA needs."""
        modules = self._modules or set()
        if self._is_whole:
            self.sink.add("modules.read", True)
        # a whole list shows which hosts have both; one that grep let through may show GPU's modules alone
        if "nvidia" in modules and (
            not self._is_whole or modules & {"mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs"}
        ):
            self.sink.add("module.peermem", bool(modules & {"nvidia_peermem", "nv_peer_mem"}))
