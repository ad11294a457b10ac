"""Verbs from Python: small operations a CPU-second, and a gibibyte at once. Prints figures; asserts none.

python benchmarks/verbs_calls.py [analytic|packet]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import verbs_ends
from clusters import boxes
from verbs_ends import ALL, End, pair

from fabrictwin.verbs.enums import (  # type: ignore[attr-defined]
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
)
from fabrictwin.verbs.mr import MR
from fabrictwin.verbs.wr import SGE, RecvWR, SendWR


def rate(one: End, other: End, opcode: int, *, count: int, depth: int) -> float:
    """Operations of 64 B a CPU-second, `depth` of them outstanding."""
    sge, theirs = one.sge(), SGE(other.mr.buf, 64, other.mr.lkey)
    if opcode == IBV_WR_SEND:
        for _ in range(depth):
            other.qp.post_recv(RecvWR(0, 1, [theirs]))
    posted = done = 0
    started = time.process_time()
    while done < count:
        while posted < count and posted - done < depth:
            request = SendWR(posted, opcode, 1, 0, [sge])
            if opcode != IBV_WR_SEND:
                request.set_wr_rdma(other.mr.rkey, other.mr.buf)
            one.qp.post_send(request)
            posted += 1
        done += one.cq.poll(depth)[0]
        if opcode == IBV_WR_SEND:
            for _ in range(other.cq.poll(depth)[0]):
                other.qp.post_recv(RecvWR(0, 1, [theirs]))
    return count / (time.process_time() - started)


def main() -> None:
    verbs_ends.ENGINE = sys.argv[1] if len(sys.argv) > 1 else "packet"
    one, other = pair(boxes(8), depth=128)
    for name, opcode, depth in (
        ("write", IBV_WR_RDMA_WRITE, 64),
        ("send", IBV_WR_SEND, 64),
        ("read", IBV_WR_RDMA_READ, 4),
    ):
        rate(one, other, opcode, count=500, depth=depth)
        print(
            f"{verbs_ends.ENGINE} {name}: {rate(one, other, opcode, count=20_000, depth=depth):,.0f} /CPU-second"
        )
    size = 1 << 30
    one.mr, other.mr = (MR(end.pd, size, ALL) for end in (one, other))
    started, cpu = time.perf_counter(), time.process_time()
    one.send(IBV_WR_RDMA_WRITE, length=size, remote=other)
    one.done()
    print(
        f"1 GiB: {time.perf_counter() - started:.2f} s of wall time, {time.process_time() - cpu:.2f} s of CPU time"
    )


if __name__ == "__main__":
    main()
