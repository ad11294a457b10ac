"""How a command ends: what is registered happens, what is printed arrives, and nothing waits for memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import atexit, gc, sys, tempfile, threading, time
from pathlib import Path
from fabrictwin.base.process.end import end

class Freed:
    def __del__(self):
        print("freed")

freed = Freed()
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BEGIN + program], capture_output=True, text=True, check=False)


def test_functions_for_the_end_are_called_in_their_order_and_outputs_are_flushed():
    done = run(
        "atexit.register(print, 'first registered')\n"
        "atexit.register(print, 'last registered')\n"
        "print('printed', end='; ')\n"
        "sys.stderr.write('said')\n"
        "end(3)\n"
        "print('went on')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        3,
        "printed; last registered\nfirst registered\n",
        "said",
    )


def test_temporary_folders_are_removed():
    done = run("folder = tempfile.TemporaryDirectory()\nprint(folder.name)\nend(0)\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(done.stdout.strip()).exists()


@pytest.mark.parametrize(
    "before",
    [
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
        "sys.setprofile(lambda *_: None)",
        "sys.settrace(lambda *_: None)",
    ],
)
def test_it_ends_as_python_does_where_something_has_to_be_waited_for_or_watches(before):
    done = run(f"{before}\nend(0)\nprint('went on')\n")
    assert "went on" in done.stdout


def test_an_output_that_takes_nothing_more_is_left_to_python():
    done = run("sys.stdout.close()\nend(4)\nsys.exit(5)\n")
    assert done.returncode in (4, 5)
    done = run("sys.stdout = open('/dev/full', 'w')\nprint('lost')\nend(4)\nsys.exit(5)\n")
    assert done.returncode in (5, 120)
