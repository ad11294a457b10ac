"""Run rdma-core's own Python tests against the twin, unchanged.

    python -m fabrictwin.verbs.rdma_core_tests PATH/TO/rdma-core/tests

The tests live beside a checkout of rdma-core, or where Debian's python3-pyverbs puts them
(/usr/share/doc/rdma-core/tests, partly compressed). They are copied into a temporary folder as they are, `import
pyverbs` is made to mean the twin, and the vendor-neutral modules run. The tests ask two programs about the host,
`rdma link show` and `cat` of a P_Key in sysfs; stand-ins in front of PATH answer for the twin's devices.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import io
import json
import os
import shutil
import sys
import tempfile
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fabrictwin.base.errors import ConfigError, FabrictwinError

if TYPE_CHECKING:
    from fabrictwin.twin import Twin

MODULES = (
    "test_device",
    "test_pd",
    "test_mr",
    "test_cq",
    "test_cqex",
    "test_qp",
    "test_qpex",
    "test_addr",
    "test_atomic",
    "test_srq",
    "test_cq_events",
    "test_shared_pd",
    "test_relaxed_ordering",
)
# Skipped because the twin has no device memory and no dma-bufs: not counted in the share that passes.
_NOT_COUNTED = ("Device memory is not supported", "/dev/dri/", "dmabuf")


@dataclass
class Outcome:
    """What became of one module's tests: names, and of all but the passed ones why."""

    module: str
    passed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)

    @property
    def counted_skips(self) -> list[tuple[str, str]]:
        return [(name, why) for name, why in self.skipped if not any(word in why for word in _NOT_COUNTED)]


class _Collector(unittest.TestResult):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome

    @staticmethod
    def _name(test: unittest.TestCase) -> str:
        return test.id().split(".", 2)[-1]

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self.outcome.passed.append(self._name(test))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.outcome.skipped.append((self._name(test), reason))

    def addFailure(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        self.outcome.failed.append((self._name(test), self._exc_info_to_string(err, test)))  # type: ignore[attr-defined]

    def addError(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        name = self._name(test) if isinstance(test, unittest.TestCase) else str(test)
        self.outcome.errors.append((name, self._exc_info_to_string(err, test)))  # type: ignore[attr-defined]


def unpack(source: Path, into: Path) -> Path:
    """Copy the tests as they are, compressed ones unpacked. Raises ConfigError where there are none."""
    target = into / "tests"
    target.mkdir()
    for file in sorted(source.iterdir() if source.is_dir() else ()):
        if file.name.endswith(".py.gz"):
            (target / file.name[:-3]).write_bytes(gzip.decompress(file.read_bytes()))
        elif file.suffix == ".py":
            shutil.copyfile(file, target / file.name)
    if not (target / "base.py").exists() or not (target / "args_parser.py").exists():
        raise ConfigError(
            f"got {str(source)!r}, expected rdma-core's folder `tests` (base.py, args_parser.py, ...)"
        )
    return target


def write_stand_ins(folder: Path, devices: Sequence[str]) -> None:
    """`rdma link show -j`, and `cat` of a port's P_Keys in sysfs; `cat` of anything else is the system's."""
    folder.mkdir()
    links = [
        {"ifindex": i, "ifname": name, "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP"}
        for i, name in enumerate(devices)
    ]
    cat = shutil.which("cat") or "/bin/cat"
    scripts = {
        "rdma": f"#!/bin/sh\nprintf '%s\\n' '{json.dumps(links)}'\n",
        "cat": f'#!/bin/sh\ncase "$1" in /sys/class/infiniband/*/pkeys/0) echo 0xffff;; '
        f'*) exec {cat} "$@";; esac\n',
    }
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def _tests_of(suite: unittest.TestSuite, wanted: Sequence[str]) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests_of(test, wanted)
        elif not wanted or any(word in test.id() for word in wanted):
            yield test


def run(source: Path, twin: Twin, *, only: Sequence[str] = (), engine: str = "packet") -> list[Outcome]:
    """Run the tests of a folder. `only` picks tests whose name holds one of these words."""
    from fabrictwin.verbs import current_host, install, uninstall

    outcomes = []
    path, argv, modules, environment = list(sys.path), list(sys.argv), set(sys.modules), os.environ.get("PATH", "")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tests = unpack(source, folder)
        install(twin, engine=engine)  # type: ignore[arg-type]
        write_stand_ins(folder / "bin", [adapter.name for adapter in current_host.adapters()])
        os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{environment}"
        sys.path[:0] = [str(folder), str(tests)]
        sys.argv = ["run_tests"]
        try:
            importlib.import_module("args_parser").parser.parse_args()
            for name in MODULES:
                if (tests / f"{name}.py").exists():
                    outcomes.append(_run_module(name, only))
        finally:
            sys.path[:], sys.argv = path, argv
            os.environ["PATH"] = environment
            for name in set(sys.modules) - modules:
                if name == "args_parser" or name.split(".")[0] == "tests":
                    del sys.modules[name]
            uninstall()
    return outcomes


def _run_module(name: str, only: Sequence[str]) -> Outcome:
    outcome = Outcome(name)
    collector = _Collector(outcome)
    try:
        module = importlib.import_module(f"tests.{name}")
    except Exception as error:
        outcome.errors.append((name, f"{type(error).__name__}: {error}"))
        return outcome
    for test in _tests_of(unittest.defaultTestLoader.loadTestsFromModule(module), only):
        out, sys.stdout = sys.stdout, io.StringIO()
        try:
            test.run(collector)
        finally:
            sys.stdout = out
    return outcome


def report(outcomes: Sequence[Outcome], *, verbose: bool = False) -> str:
    """A table by module, then every test that did not pass and why."""
    lines = [f"{'module':<24}{'passed':>8}{'skipped':>9}{'failed':>8}{'errors':>8}"]
    for o in outcomes:
        counts = (len(o.passed), len(o.skipped), len(o.failed), len(o.errors))
        lines.append(f"{o.module:<24}{counts[0]:>8}{counts[1]:>9}{counts[2]:>8}{counts[3]:>8}")
    passed, counted, without = share(outcomes)
    share_text = f"{100 * passed / counted:.1f}%" if counted else "none"
    lines.append(
        f"{passed} of {counted} tests that need neither device memory nor dma-buf pass ({share_text}); "
        f"{without} need one and skip"
    )
    for o in outcomes:
        lines += [f"skipped {o.module} {name}: {why}" for name, why in (o.skipped if verbose else o.counted_skips)]
    for o in outcomes:
        for word, found in (("failed", o.failed), ("error", o.errors)):
            for name, why in found:
                text = why.strip()
                lines.append(f"{word} {o.module} {name}: {text if verbose else text.splitlines()[-1]}")
    return "\n".join(lines)


def share(outcomes: Sequence[Outcome]) -> tuple[int, int, int]:
    """(tests that passed, of so many that need neither device memory nor dma-buf, tests that do)."""
    passed = sum(len(o.passed) for o in outcomes)
    counted = passed + sum(len(o.counted_skips) + len(o.failed) + len(o.errors) for o in outcomes)
    return passed, counted, sum(len(o.skipped) - len(o.counted_skips) for o in outcomes)


def _twin(technology: str) -> Twin:
    """Two hosts under one switch; the tests run on the first."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import read_spec
    from fabrictwin.twin import Twin

    switch = "qm8700" if technology == "infiniband" else "spectrum-4"
    network = {"technology": technology, "switch": switch, "topology": {"kind": "single-switch"}}
    spec = read_spec(
        {
            "schema": 1,
            "name": "conformance",
            "cluster": {"hosts": {"type": "pcie-box", "count": 2}, "network": network},
        }
    )
    return Twin(build(spec.cluster, spec=spec))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fabrictwin.verbs.rdma_core_tests", description=__doc__.split("\n")[0]
    )
    parser.add_argument("tests", type=Path, help="rdma-core's folder of Python tests")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="tests whose name holds one of these"
    )
    parser.add_argument("--technology", choices=("infiniband", "ethernet"), default="ethernet")
    parser.add_argument("--engine", choices=("packet", "flow", "analytic"), default="packet")
    parser.add_argument("--verbose", action="store_true", help="every skip, and whole tracebacks")
    chosen = parser.parse_args(arguments)
    try:
        outcomes = run(chosen.tests, _twin(chosen.technology), only=chosen.only, engine=chosen.engine)
    except FabrictwinError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report(outcomes, verbose=chosen.verbose))
    return 1 if any(o.failed or o.errors for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
