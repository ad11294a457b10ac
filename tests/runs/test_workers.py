"""Work on many items in processes: order, deaths, the parent's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.runs.workers import Lost, answers


def square(item: int, *, deadly: frozenset[int] = frozenset()) -> int:
    if item in deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_is_answered_once(workers):
    found = list(answers(square, range(20), workers))
    assert sorted(found) == [(i, i * i) for i in range(20)]


@pytest.mark.second
def test_a_dying_worker_takes_nothing_else_with_it():
    found = dict(answers(partial(square, deadly=frozenset({3, 11})), range(16), 2))
    assert {place for place, answer in found.items() if isinstance(answer, Lost)} == {3, 11}
    assert all(answer == place**2 for place, answer in found.items() if place not in (3, 11))


def test_an_error_of_the_work_ends_the_workers():
    with pytest.raises(TypeError):
        list(answers(square, [1, None, 2], 2))


@pytest.mark.second
def test_a_script_needs_no_guard_and_its_workers_end_with_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "from fabrictwin.runs.workers import answers\n"
        "for place, found in answers(time.sleep, [0.0, 600.0, 600.0], 2):\n"
        "    print(*(p.pid for p in __import__('multiprocessing').active_children()), flush=True)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        children = [int(word) for word in process.stdout.readline().split()]
        process.kill()
    assert children
    until = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{child}") for child in children) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [child for child in children if os.path.exists(f"/proc/{child}")]


def test_ray_that_is_not_installed_or_not_there_is_one_error():
    with pytest.raises(ConfigError, match=r"needs Ray|no Ray cluster answers"):
        list(answers(square, [1], "127.0.0.1:1"))
