"""Targets of `fuzz.py`: what clusters print, as the doctor reads it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fuzzing import printed
from fuzzing.target import Target, folder, of_file

_NCCL = b"""host-0:4711:4711 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
host-0:4711:4720 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
host-0:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
host-0:4711:4725 [0] misc/socket.cc:481 NCCL WARN socketPollConnect: connect returned Connection refused
host-1:99:120 [1] transport/net_ib.cc:1862 NCCL WARN NET/IB: Got completion from peer 10.0.0.1<4791> with status=12
    33554432       8388608     float     sum      -1   412.30   81.38  152.59      0   410.10   81.82  153.41      0
"""


def _evidence() -> Target:
    """Files of a sick cluster: text, JSON, a flight recorder's dump, packed or not."""
    from fabrictwin.diagnosis.readers.reading import read_paths

    entry = {
        "collective_seq_id": 3, "p2p_seq_id": 0, "op_id": 3, "profiling_name": "nccl:all_reduce", "state": "started",
        "input_sizes": [[1024]], "output_sizes": [[1024]], "input_dtypes": ["Float"], "process_group": ("0", "default"),
    }  # fmt: skip
    dump = {
        "version": "2.9",
        "entries": [entry],
        "pg_config": {"0": {"name": "0", "desc": "default", "ranks": "[0, 1]"}},
    }
    config = {"DEVICE_METADATA": {"localhost": {"hostname": "leaf-0"}}, "PORT": {"Ethernet0": {"speed": "400000"}}}

    def read(data: bytes) -> None:
        path = folder() / f"{os.getpid()}-evidence"
        path.write_bytes(data)
        read_paths([path])

    samples = [_NCCL, pickle.dumps(dump, 2), pickle.dumps(dump, 4), json.dumps(config).encode()]
    samples += [json.dumps(dump).encode(), gzip.compress(_NCCL, mtime=0)]
    return Target(samples, read)


def _diagnosis(name: str) -> Target:
    from fabrictwin.diagnosis.diagnose import judged
    from fabrictwin.diagnosis.readers.reading import read_paths

    def read(path: Path) -> None:
        found = judged(read_paths([path]), twin=False)
        found.as_data()

    return Target(printed.SAMPLES[name], of_file(f"{name}.txt", read))


def _archived(form: str, members: list[tuple[str, bytes]]) -> bytes:
    import io
    import tarfile

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{form}") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("host-0/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return packed.getvalue()


def _sparse() -> bytes:
    """A file of GNU tar with holes, whose length is what its header says."""
    import tarfile

    member = tarfile.TarInfo("host-0/sparse.log")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    head[386:410] = b"00000000000\0" + b"00000001000\0"  # 512 bytes at the beginning
    head[483:495] = b"00000004000\0"  # of 2,048 in all
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + _NCCL[:512] + bytes(1024)


def _archive() -> Target:
    """Archives as `collect` packs them."""
    from fabrictwin.diagnosis.readers.reading import read_paths

    members = [("host-0/nccl.log", _NCCL), ("host-1/../dmesg", _NCCL[:200]), ("/etc/passwd", b"x")]
    samples = [_archived(form, members) for form in ("", "gz", "bz2", "xz")] + [_sparse()]
    return Target(samples, of_file("collected.tar", lambda path: read_paths([path])))


DIAGNOSIS: dict[str, Callable[[], Target]] = {
    "evidence": _evidence,
    "archive": _archive,
    **{name: partial(_diagnosis, name) for name in printed.SAMPLES},
}
