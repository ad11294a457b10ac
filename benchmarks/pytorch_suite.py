"""PyTorch's own tests of a backend, those that its wheel brings, on the backend `fabrictwin`.

    torchrun --standalone --nproc-per-node 3 benchmarks/pytorch_suite.py [--backend gloo] [--only WORD]

Each test has a group of its own among the same processes; one that waits longer than the group's timeout fails.
The tests are told that the backend is gloo, by whose name they choose what a backend is to be able to. Rank 0
prints a line a test: passed, failed with the reason of the first rank that had one, or skipped and why.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import unittest
from collections import Counter
from datetime import timedelta
from typing import Any


def outcome(case: Any, name: str) -> tuple[str, str]:
    """Run a test as this rank: (passed, failed or skipped; why)."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    skips = {one.exit_code: one.message for one in TEST_SKIPS.values()}
    try:
        getattr(case, name)()
    except unittest.SkipTest as why:
        return "skipped", str(why)
    except SystemExit as left:
        return ("passed", "") if not left.code else ("skipped", skips.get(left.code, str(left.code)))
    except BaseException as wrong:
        text = str(wrong).strip().splitlines()
        return "failed", f"{type(wrong).__name__}: {text[0] if text else ''}"
    return "passed", ""


def run(asked: argparse.Namespace) -> int:
    """Run the tests; the number that failed."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)  # models that the tests share are made once they are imported
    from torch.testing._internal.distributed import distributed_test as suite

    class Cases(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
        pass

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("localhost", int(os.environ["MASTER_PORT"]) + 1, world, rank == 0)
    for folder in ("barrier", "test_dir"):
        os.makedirs(f"{os.environ['TEMP_DIR']}/{folder}", exist_ok=True)
    open(f"{os.environ['TEMP_DIR']}/lockfile", "a").close()
    counts: Counter[str] = Counter()
    names = [one for one in dir(Cases) if one.startswith("test_") and asked.only in one and one > asked.after]
    for i, name in enumerate(names):
        case, begun = Cases(name), time.perf_counter()
        if rank == 0:
            suite.Barrier.init()
            store.set(f"ready/{i}", "")
        store.get(f"ready/{i}")
        suite.Barrier.barrier_id = 0
        torch.manual_seed(0)
        case.rank, case.file_name = rank, tempfile.mktemp()
        dist.init_process_group(
            asked.backend, store=dist.PrefixStore(f"{i}", store), rank=rank, world_size=world,
            timeout=timedelta(seconds=asked.timeout),
        )  # fmt: skip
        how, why = outcome(case, name)
        store.set(f"how/{i}/{rank}", f"{how}\t{why}")
        every = [store.get(f"how/{i}/{other}").decode().split("\t", 1) for other in range(world)]
        if dist.is_initialized():
            dist.destroy_process_group()
        kinds = {one for one, _ in every}
        all_of = next(one for one in ("failed", "passed", "skipped") if one in kinds)
        counts[all_of] += 1
        if rank == 0:
            because = next((why for one, why in every if one == all_of and why), "")
            print(f"{all_of:8}{time.perf_counter() - begun:6.1f} s  {name}  {because[:150]}", flush=True)
    if rank == 0:
        print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    store.set(f"left/{rank}", "")
    for other in range(world):
        store.get(f"left/{other}")
    return counts["failed"]


def main() -> int:
    """Read arguments and run; 1 where a test failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="fabrictwin")
    parser.add_argument("--only", default="", help="tests whose names have this word")
    parser.add_argument("--after", default="", help="the last test of a run that is to go on")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that a call may wait")
    asked = parser.parse_args()
    sys.argv[1:] = []
    os.environ["BACKEND"] = "gloo"
    # one folder for all ranks
    os.environ["TEMP_DIR"] = f"{tempfile.gettempdir()}/pytorch-suite-{os.environ['MASTER_PORT']}"
    return int(run(asked) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
