"""Diagnose a log of a given size: time, processor time and memory.

    python benchmarks/doctor_large.py [--megabytes 1000] [--folder DIR] [--kinds nccl,names,dmesg,...]

`nccl` is the twin's own log of nccl-tests on two hosts with a fault, its lines repeated as a long job's are (the
same ranks, other numbers), below the prefixes of mpirun. The others are made of templates, their numbers and names
drawn from a seed: `names`, syslog of as many hosts as lines; `dmesg`, a kernel's log of flapping links and PCIe
errors; `vllm`, a server's log; `pods`, the same below another name of a pod in each line; `torchrun`, a training
job's; `prose`, running text in which words of trouble stand by chance; `json`, one object a line; `ranks`, lines
of NCCL of 2,048 ranks in any order; `line`, one line without an end; `files`, 20,000 files in a folder. Timings
are of this machine and its load, which is printed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

SOURCES = str(Path(__file__).parents[1] / "src")
sys.path.insert(0, SOURCES)

MEGABYTE = 10**6
# the reader says what it held itself: of children the kernel tells the greatest of all
MEASURED = """
import resource, sys
from fabrictwin.cli import main
main()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


_CALL = re.compile(r"\bopCount ([0-9a-f]+)")  # a collective's number, which ranks that agree count alike


def lines_of_a_job() -> list[str]:
    """The log of a run whose second host lacks the peer memory module."""
    import fabrictwin as ft

    out = io.StringIO()
    spec = {
        "schema": 1,
        "cluster": {
            "hosts": {"type": "dgx-h100", "count": 2},
            "network": {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"},
        },
        "faults": [{"host": "host-1", "cause": "no-gpudirect-module"}],
    }
    asked = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,GRAPH,BOOTSTRAP,TUNING,P2P,SHM,COLL"}
    ft.nccl_tests("all_reduce_perf", spec, minbytes="64M", maxbytes="1G", check=0, environment=asked, out=out)
    return out.getvalue().splitlines()


def nccl() -> Iterator[str]:
    """Lines of a NCCL job, again and again."""
    # in a process of its own: what it holds would count as the reader's, which is started by this one
    own = [sys.executable, "-c", "import doctor_large; print('\\n'.join(doctor_large.lines_of_a_job()))"]
    told = subprocess.run(own, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    lines = told.stdout.splitlines()
    calls = 1 + max(int(found, 16) for found in _CALL.findall(told.stdout))
    number = 0
    while True:
        number += 1
        for i, line in enumerate(lines):
            later = _CALL.sub(lambda found: f"opCount {int(found[1], 16) + number * calls:x}", line)  # noqa: B023
            yield f"[1,{(number + i) % 16}]<stdout>:{later}\n"


TEMPLATES = {
    "names": (
        "Jan  5 17:{m:02}:{s:02} {name} app[{n}]: could not reach {other}: request failed after {n} ms",
        "Jan  5 17:{m:02}:{s:02} {name} trainer[{n}]: step {n} loss 2.31 samples/s 312.4 from {other}",
        "2026-01-05 17:{m:02}:{s:02},123 INFO {name} worker {n} joined {other} with state ready",
        "Jan  5 17:{m:02}:{s:02} {name} sshd[{n}]: Connection closed by authenticating user root {other} port {n}",
        "{name}:{n}:{n} [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA comm {other}",
        "2026-01-05 17:{m:02}:{s:02},123 WARNING {name} scheduler: no free slot for {other}, waiting",
        "Jan  5 17:{m:02}:{s:02} {name} kernel: [ {n}.123] eth0: link becomes ready {other}",
    ),
    "dmesg": (
        "[{n}.{u:06}] mlx5_core 0000:{h:02x}:00.0 ens{h}np0: Link down",
        "[{n}.{u:06}] mlx5_core 0000:{h:02x}:00.0 ens{h}np0: Link up",
        "[{n}.{u:06}] pcieport 0000:{h:02x}:01.0: AER: Corrected error message received from 0000:{h:02x}:00.0",
        "[{n}.{u:06}] mlx5_core 0000:{h:02x}:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        '[{n}.{u:06}] audit: type=1400 audit({n}.123:{u}): apparmor="DENIED" pid={u} comm="{name}"',
        "[{n}.{u:06}] IN=eth0 OUT= MAC={h:02x}:{h:02x} SRC=10.0.{m}.{s} DST=10.0.{s}.{m} LEN=60 SPT={u}",
        "[{n}.{u:06}] docker0: port {m}(veth{u:x}) entered blocking state",
        "[{n}.{u:06}] NVRM: Xid (PCI:0000:{h:02x}:00): 31, pid={u}, name={name}, Ch {m:08x}. MMU Fault",
    ),
    "vllm": (
        "INFO 01-05 17:{m:02}:{s:02} [metrics.py:481] Avg prompt throughput: {n}.{s} tokens/s, Avg generation "
        "throughput: {u}.{m} tokens/s, Running: {m} reqs, Swapped: 0 reqs, GPU KV cache usage: {m}.{s}%",
        'INFO:     10.0.{m}.{s}:{u} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "INFO 01-05 17:{m:02}:{s:02} [logger.py:39] Received request chatcmpl-{u:x}{n:x}: prompt: '{words}', "
        "params: SamplingParams(n=1, temperature=0.{m}, max_tokens={n}, seed=None)",
        "INFO 01-05 17:{m:02}:{s:02} [async_llm.py:252] Added request chatcmpl-{u:x}{n:x}.",
        "(VllmWorkerProcess pid={u}) WARNING 01-05 17:{m:02}:{s:02} [scheduler.py:1241] Sequence group "
        "chatcmpl-{u:x} is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space.",
    ),
    "torchrun": (
        "[default{h}]:iteration {n}/ 500000 | consumed samples: {u} | elapsed time per iteration (ms): {n}.{m} | "
        "learning rate: 1.{u}E-04 | lm loss: 2.{u}E+00 | grad norm: 0.{m} | number of skipped iterations: 0 |",
        "[rank{h}]: {m}%|######    | {n}/500000 [{m:02}:{s:02}<{s:02}:{m:02}, {m}.{s}it/s, loss=2.{u}]",
        "[default{h}]:[2026-01-05 17:{m:02}:{s:02},{m}] [INFO] [logging.py:96:log_dist] [Rank {h}] step={n}, "
        "skipped=0, lr=[0.000{u}], mom=[(0.9, 0.95)]",
        "[rank{h}]:[W105 17:{m:02}:{s:02}.{u} ProcessGroupNCCL.cpp:1496] Warning: {name} was not called",
        "[default{h}]:node{m}:{u}:{n} [{h}] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x7f{u:x} recvbuff "
        "0x7f{u:x} count {u} datatype 9 op 0 root 0 comm 0x55{h:08x} [nranks=64] stream 0x55{m:08x}",
        "[rank{h}]: wrote shard {n} of {name} to /data/{other}/iter_{n:07}/mp_rank_{h:02}",
    ),
    "json": (
        '{{"timestamp":"2026-01-05T17:{m:02}:{s:02}.{u:06}Z","level":"info","host":"{name}","logger":"trainer",'
        '"message":"step {n} loss 2.{u} grad_norm 0.{m}","rank":{n},"pod":"train-{other}"}}',
        '{{"timestamp":"2026-01-05T17:{m:02}:{s:02}.{u:06}Z","level":"warning","host":"{name}","logger":"data",'
        '"message":"shard {other} took {n} ms: retrying after timeout","rank":{n},"pod":"train-{other}"}}',
        '{{"log":"INFO 01-05 17:{m:02}:{s:02} [loggers.py:123] Engine 00{h}: {n}.{m} tokens/s\\n",'
        '"stream":"stderr","kubernetes":{{"pod_name":"vllm-{name}","node":"{other}"}}}}',
    ),
    "prose": ("{words} {words} {words}", "> {words}, {words}: {words}.", "{words} ({name}) {words}"),
}
TEMPLATES["pods"] = tuple(
    "2026-01-05T17:{m:02}:{s:02}.{u:06}Z stderr F vllm-{name}-{other} " + one for one in TEMPLATES["vllm"]
)
ORDINARY = (
    "the a of and to in that it was for with as his on be at by had not from which no but have could they you"
)
TROUBLE = "error failed memory closed lost connection broken address missing invalid network state full exit kill"
WORDS = (*ORDINARY.split(), *ORDINARY.upper().split(), *ORDINARY.title().split(), *TROUBLE.split())


def drawn(kind: str) -> Iterator[str]:
    """Lines of templates, the numbers and names in them drawn from a seed."""
    draw = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    while True:
        for template in TEMPLATES[kind]:
            yield (
                template.format(
                    name="".join(draw.choices(letters, k=8)),
                    other="".join(draw.choices(letters, k=8)),
                    words=" ".join(draw.choices(WORDS, k=8)) if "{words}" in template else "",
                    m=draw.randrange(60),
                    s=draw.randrange(60),
                    h=draw.randrange(8),
                    n=draw.randrange(99_999),
                    u=draw.randrange(999_999),
                )
                + "\n"
            )


def ranks() -> Iterator[str]:
    """Lines of NCCL of 2,048 ranks on 256 hosts, in any order."""
    draw = random.Random(7)
    said = (
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.{h}.{l}.1<0>",
        "comm 0x{r:x} rank {r} nRanks 2048 nNodes 256 localRanks 8 localRank {l} MNNVL 0",
        "Channel {c:02}/0 : {r}[{l}] -> {p}[{l}] [send] via NET/IB/{l}/GDRDMA",
        "Channel {c:02}/0 : {r}[{l}] -> {q}[{l}] via P2P/CUMEM",
        "AllReduce: opCount {n:x} sendbuff 0x7f{n:x} recvbuff 0x7f{n:x} count {n} datatype 9 op 0 root 0 comm 0x5",
        "ncclCommInitRank comm 0x5 rank {r} nranks 2048 cudaDev {l} busId {l}b000 commId 0x5 - Init COMPLETE",
    )
    while True:
        rank = draw.randrange(2048)
        host, local = divmod(rank, 8)
        words = draw.choice(said).format(
            r=rank, h=host, l=local, c=draw.randrange(32), p=(rank + 8) % 2048, q=host * 8 + (local + 1) % 8,
            n=draw.randrange(1 << 30),
        )  # fmt: skip
        yield f"node-{host:03}:{4000 + local}:{4100 + local} [{local}] NCCL INFO {words}\n"


def line() -> Iterator[str]:
    """One line without an end: objects behind each other."""
    return (one.replace("\n", " ") for one in drawn("json"))


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "nccl": nccl,
    "ranks": ranks,
    "line": line,
    **{kind: partial(drawn, kind) for kind in TEMPLATES},
}


def main() -> int:
    """Write the logs, read each, and say what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--kinds", default="nccl")
    arguments = parser.parse_args()
    for kind in arguments.kinds.split(","):
        if kind == "files":
            many_files(arguments.folder, arguments.megabytes)
            continue
        path = arguments.folder / f"doctor-large-{os.getpid()}.log"
        try:
            with path.open("w", encoding="utf-8") as stream:
                lines, size = KINDS[kind](), 0
                while size < arguments.megabytes * MEGABYTE:
                    size += stream.write(next(lines))
            measure(kind, path, size)
        finally:
            path.unlink(missing_ok=True)
    return 0


FILES = 20_000


def many_files(folder: Path, megabytes: int) -> None:
    """Diagnose a folder of files that are of the other kinds by turns, `megabytes` in all."""
    kinds = [KINDS["ranks"](), *(drawn(kind) for kind in ("vllm", "dmesg", "torchrun", "json"))]
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        whole = 0
        for number in range(FILES):
            path = Path(inside) / f"host-{number % 500}" / f"{number}.log"
            path.parent.mkdir(exist_ok=True)
            lines, size = kinds[number % len(kinds)], 0
            with path.open("w", encoding="utf-8") as stream:
                while size < megabytes * MEGABYTE / FILES:
                    size += stream.write(next(lines))
            whole += size
        measure("files", Path(inside), whole)


def measure(kind: str, path: Path, size: int) -> None:
    """Diagnose a log, and print what that took."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "doctor", str(path), "--no-twin", "--json"],
        env=os.environ | {"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall = time.perf_counter() - began
    found = json.loads(done.stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{kind}: {size / MEGABYTE:.0f} MB: {wall:.1f} s, {cpu:.1f} s of processor time at load "
        f"{os.getloadavg()[0]:.1f}; {int(done.stderr.split()[-1]) / 1024:.0f} MiB at most"
    )
    print(f"  {found['verdict']}: {[one['id'] for one in found['findings'][:3]]}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
