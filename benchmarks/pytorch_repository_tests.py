"""PyTorch's distributed tests, those of its repository that no wheel brings, with the backend exchanged.

    python benchmarks/pytorch_repository_tests.py FOLDER test_c10d_common.py '_composable/fsdp/*.py' --gpus 4

FOLDER is `test/distributed` of a checkout of PyTorch, at the installed release or near it. Each file runs in a
process of its own, whose tests fork theirs. Where a test asks for gloo or NCCL it gets `--backend`: fabrictwin, or
gloo for comparison. With `--gpus 4` torch.cuda answers for a modelled GPU of which four are there; tensors are
on the CPU. A line a file; `--out` keeps a line of JSON a test, and `--against` names such a file of another run,
whose outcomes that differ are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REASONS = 6  # the most frequent, of a file
KINDS = ("passed", "failed", "skipped")
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*", re.MULTILINE)


# ------------------------------------------------------------------ in the process of a file


def _fork_children() -> None:
    """Let tests fork their processes: these find torch imported and the backend exchanged."""
    import multiprocessing

    import torch.multiprocessing

    original = multiprocessing.get_context

    def get_context(method: str | None = None) -> Any:
        return original("fork")

    for module in (multiprocessing, torch.multiprocessing):
        module.get_context = get_context  # type: ignore[attr-defined, assignment]
        module.set_start_method = lambda *_, **__: None  # type: ignore[attr-defined, assignment]


def _exchange_process_groups() -> None:
    """Let tests that make a ProcessGroupGloo themselves have the twin's backend."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    from fabrictwin.torch import c10d_backend

    real = dist.ProcessGroupGloo

    class Gloo(c10d_backend.FabrictwinBackend):  # type: ignore[misc]
        _Options, create_device, create_default_device = (
            real._Options, real.create_device, real.create_default_device
        )  # fmt: skip

        def __init__(self, store: Any, rank: int, size: int, options: Any = None, timeout: Any = None) -> None:
            given = timeout or (
                options if options is None or not hasattr(options, "_timeout") else options._timeout
            )
            super().__init__(store, rank, size, given or c10d.default_pg_timeout)

    assert c10d_backend.dist is dist
    for module in (dist, c10d):
        module.ProcessGroupGloo = Gloo  # type: ignore[misc, assignment]


def _exchange(*, fabrictwin: bool, gpus: int) -> Any:
    """Exchange what tests run on; the modes that they run in."""
    from contextlib import ExitStack

    modes = ExitStack()
    if gpus:
        from fabrictwin.torch.device.modelled_cuda import CudaOnCpu, ModelledGpu, answer

        answer(ModelledGpu(count=gpus))
        modes.enter_context(CudaOnCpu())
    if fabrictwin:
        from fabrictwin.torch.exchanged_backend import exchange_backend

        _exchange_process_groups()
        exchange_backend()
    return modes


class _Outcomes(unittest.TestResult):
    """A line of JSON a test."""

    def __init__(self, out: Any) -> None:
        super().__init__()
        self._out = out

    def startTest(self, test: Any) -> None:  # noqa: N802
        super().startTest(test)
        self._begun = time.perf_counter()

    def _say(self, test: Any, how: str, why: str) -> None:
        row = {"test": test.id(), "how": how, "why": why[:600], "s": round(time.perf_counter() - self._begun, 2)}
        self._out.write(json.dumps(row) + "\n")
        self._out.flush()

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self._say(test, "passed", "")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self._say(test, "skipped", reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self._say(test, "passed", "fails as expected")

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        self._say(test, "failed", "expected to fail")

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        text = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]
        found = _ERROR.findall(text)
        own = [one for one in found if not re.match(r"RuntimeError: Process \d+ exited", one)]
        self._say(test, "failed", (own or found or text.strip().splitlines()[-1:] or [""])[0])
        if os.environ.get("SUITE_VERBOSE"):
            sys.stderr.write(f"---- {test.id()}\n{text}\n")

    addError = addFailure  # noqa: N815


def _import_tests(folder: Path, file: str) -> Any:
    import importlib.util

    sys.path[:0] = [str((folder / file).parent), str(folder), str(folder.parent)]
    spec = importlib.util.spec_from_file_location(Path(file).stem, folder / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _tests_of(module: Any) -> Iterator[Any]:
    """Tests of classes that a file itself has, in its order."""
    for case in vars(module).values():
        if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__:
            yield from unittest.defaultTestLoader.loadTestsFromTestCase(case)


def run_file(asked: argparse.Namespace) -> int:
    """Run a file's tests in this process; a line of JSON each into the asked file."""
    file, sys.argv[1:] = asked.files[0], []
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", str(asked.timeout))
    _fork_children()
    with _exchange(fabrictwin=asked.backend == "fabrictwin", gpus=asked.gpus), open(asked.out, "a") as out:
        import torch

        torch.set_num_threads(1)
        module = _import_tests(asked.folder, file)
        result = _Outcomes(out)
        chosen = [one for one in _tests_of(module) if asked.only in one.id()]
        unittest.TestSuite(chosen).run(result)
    return 0


# ------------------------------------------------------------------ in the process that was started


def _run_apart(asked: argparse.Namespace, file: str, out: Path) -> str:
    """Run a file's tests in a process of its own; why it ended early, if it did."""
    command = [sys.executable, __file__, str(asked.folder), file, "--here", "--out", str(out)]
    command += ["--backend", asked.backend, "--timeout", str(asked.timeout), "--only", asked.only]
    command += ["--gpus", str(asked.gpus)]
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ}
    with tempfile.TemporaryFile("w+") as said:
        quiet = None if os.environ.get("SUITE_VERBOSE") else said
        with subprocess.Popen(
            command, env=variables, stdout=quiet, stderr=quiet, start_new_session=True
        ) as running:
            try:
                code = running.wait(asked.file_timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)  # the session that this process began
        if code == 0:
            return ""
        said.seek(0)
        last = [line for line in said.read().splitlines() if line.strip()][-1:] or [""]
        return f"ended by the limit of {asked.file_timeout} s" if code is None else f"ended with {code}: {last[0]}"


def _reasons(rows: list[dict[str, Any]], kind: str) -> list[tuple[str, int]]:
    return Counter(row["why"].split("\n")[0][:110] for row in rows if row["how"] == kind).most_common(
        asked_reasons
    )


asked_reasons = 6


def run(asked: argparse.Namespace) -> int:
    """Run every file and print what came of it; the number of tests that failed."""
    files = sorted({str(p.relative_to(asked.folder)) for one in asked.files for p in asked.folder.glob(one)})
    keep = Path(asked.out) if asked.out else None
    if keep:
        keep.write_text("")
    every: list[dict[str, Any]] = []
    for file in files:
        with tempfile.TemporaryDirectory() as place:
            begun, out = time.perf_counter(), Path(place) / "tests"
            early = _run_apart(asked, file, out)
            rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        counts = Counter(row["how"] for row in rows)
        every += [{"file": file, **row} for row in rows]
        outcome = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        ended = f"; {early}" if early else ""
        print(f"{file}: {outcome}, {time.perf_counter() - begun:.0f} s{ended}", flush=True)
        for kind in ("failed", "skipped"):
            for why, count in _reasons(rows, kind):
                print(f"    {count} {kind}: {why}", flush=True)
        if keep:
            with keep.open("a") as kept:
                kept.writelines(json.dumps({"file": file, **row}) + "\n" for row in rows)
    total = Counter(row["how"] for row in every)
    print("all: " + ", ".join(f"{total[kind]} {kind}" for kind in KINDS))
    if asked.against:
        _differences(every, [json.loads(line) for line in Path(asked.against).read_text().splitlines()])
    return total["failed"]


def _differences(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """Print tests whose outcome differs from that of another run."""
    other = {(row["file"], row["test"]): row for row in others}
    for row in rows:
        there = other.get((row["file"], row["test"]))
        if there is not None and there["how"] != row["how"]:
            print(f"{row['test']}: {row['how']} {row['why'][:150]}; there {there['how']} {there['why'][:150]}")


def main() -> int:
    """Read arguments and run; 1 where a test failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+", help="files of the folder, or patterns")
    parser.add_argument("--backend", default="fabrictwin", choices=["fabrictwin", "gloo"])
    parser.add_argument("--gpus", type=int, default=0, help="modelled GPUs that torch.cuda answers for")
    parser.add_argument("--only", default="", help="tests whose names have this word")
    parser.add_argument("--timeout", type=int, default=60, help="seconds that a test may take")
    parser.add_argument("--file-timeout", type=int, default=1800, help="seconds that a file may take")
    parser.add_argument("--out", default="")
    parser.add_argument("--against", default="")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    return run_file(asked) if asked.here else int(run(asked) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
