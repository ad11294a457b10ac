"""What the program sets for itself stays its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
from fabrictwin.base.process import inherited
inherited.start_quickly()
print(os.environ["OPENBLAS_NUM_THREADS"], "OPENBLAS_NUM_THREADS" in inherited.inherited())
print(inherited.inherited() == {name: value for name, value in os.environ.items() if name not in inherited._ours})
"""


def printed(**given: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=clean | given, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_programs_of_the_users_do_not_inherit_what_we_set():
    assert printed() == "1 False\nTrue\n"


def test_what_the_user_chose_stays():
    assert printed(OPENBLAS_NUM_THREADS="3") == "3 True\nTrue\n"


@pytest.mark.parametrize(("asked", "seen"), [({}, False), ({"NUMBA_JIT_COVERAGE": "1"}, True)])
def test_numba_comes_without_coverage_unless_it_is_asked_for(asked: dict[str, str], seen: bool) -> None:
    program = (
        "import sys\n"
        "from fabrictwin.base.process.inherited import start_quickly\n"
        "start_quickly()\n"
        "import numba\n"
        "print('coverage' in sys.modules)\n"
        "import coverage\n"
        "print(coverage.Coverage.__name__)\n"
    )
    given = {name: value for name, value in os.environ.items() if name != "NUMBA_JIT_COVERAGE"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=given | asked, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{seen}\nCoverage\n"
