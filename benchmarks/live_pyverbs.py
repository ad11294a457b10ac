"""Run rdma-core's own Python tests on the twin, and say which passed, which failed, and why others did not run.

    python benchmarks/live_pyverbs.py [--technology infiniband|ethernet] [--tests FOLDER] [--library FOLDER]
                                      [--modules FOLDER] [--python PROGRAM] [NAME ...]

--tests is rdma-core's folder `tests`: Debian's (python3-pyverbs) unless another is named. Of a build of
rdma-core itself, with -DIN_PLACE=1, --library is build/lib and --modules build/python. NAME: tests of unittest,
otherwise all.
Exit code 1 where fewer than 95 in a hundred of those that ran have passed.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.clusters import boxes

from fabrictwin.live.exec import launch
from fabrictwin.live.served_twin import ServedTwin

DEBIAN = Path("/usr/share/doc/rdma-core/tests")
LEAST = 0.95
PATIENCE_S = 1800.0
_ENDS = re.compile(r"(?:^|\.\.\. |\s)(ok|FAIL|ERROR|skipped ['\"](.*)['\"])$", re.M)


def laid_out(tests: Path, folder: Path) -> Path:
    """Copy the tests, unpacked; returns where run_tests.py is."""
    to = folder / "tests"
    to.mkdir()
    for each in sorted(tests.glob("*.py*")):
        if each.suffix == ".gz":
            (to / each.stem).write_bytes(gzip.decompress(each.read_bytes()))
        elif each.suffix == ".py":
            (to / each.name).write_bytes(each.read_bytes())
    return to / "run_tests.py"


def run(options: argparse.Namespace) -> str:
    """Return what unittest printed."""
    served = ServedTwin(boxes(2, technology=options.technology))
    served.start()
    try:
        environment = launch.environment("host-0", served.socket, served.server.tree("host-0"), os.environ)
        for name, folder in (("LD_LIBRARY_PATH", options.library), ("PYTHONPATH", options.modules)):
            if folder is not None:
                environment[name] = str(folder)
        with tempfile.TemporaryDirectory() as folder:
            runner = laid_out(options.tests, Path(folder))
            command = [options.python, str(runner), "--dev", "mlx5_0", "-v", *options.names]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
    finally:
        served.close()
    return done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--technology", default="infiniband", choices=("infiniband", "ethernet"))
    parser.add_argument("--tests", type=Path, default=DEBIAN)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--modules", type=Path)
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    output = run(options)
    found = re.search(r"^Ran (\d+) tests? in", output, re.M)
    if found is None:
        print(output[-2000:])
        return 1
    ran = int(found[1])
    wrong = sorted(set(re.findall(r"^(?:FAIL|ERROR): (\S+) \((\S+)\)", output, re.M)))
    reasons = collections.Counter(reason for _, reason in _ENDS.findall(output) if reason)
    tried = ran - sum(reasons.values())
    passed = tried - len(wrong)
    print(f"{ran} tests: {passed} passed of {tried} that ran, {ran - tried} not for\n")
    print("| tests | reason |\n|---|---|")
    for reason, count in reasons.most_common():
        print(f"| {count} | {reason} |")
    for name, where in wrong:
        print(f"\nfailed: {where if where.endswith(name) else f'{where}.{name}'}")
    return int(passed < LEAST * tried)


if __name__ == "__main__":
    sys.exit(main())
