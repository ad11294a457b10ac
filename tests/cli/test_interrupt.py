"""Ctrl-C: every long command ends with exit code 130 and leaves nothing half-written."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support import processes

ROOT = Path(__file__).parents[2]
LAPTOP = str(ROOT / "examples" / "laptop.yaml")
LARGE = str(ROOT / "examples" / "llama-3.1-405b.yaml")
PATIENCE_S = 60  # each of these takes minutes when it is left alone, but claims

LONG = {
    "run": ["run", LARGE, "--fidelity", "flow", "--out", "out"],
    "plan": ["plan", LARGE, "--write", "best.yaml"],
    "compare": ["compare", LARGE, "--out", "out"],
    "jitter": ["jitter", LARGE, "--steps", "100000", "--out", "page.html"],
    "claims": ["claims", "--write", "claims.md"],
    "validate": ["validate", "training", "--out", "rows.json"],
    "sweep, in several processes": [
        "sweep",
        LARGE,
        "--vary",
        "run.seed=1,2,...,20",
        "--workers",
        "2",
        "--out",
        "t.csv",
    ],
    "validate, in several processes": ["validate", "training", "--workers", "2", "--out", "rows.json"],
    "sm": ["sm", LARGE],
    "routes": ["routes", "check", LARGE],
    "up": ["up", LAPTOP],
}


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "start_new_session": True}
    return processes.start(folder, *arguments, **quiet, env=os.environ | {"PYTHONUNBUFFERED": "1"})


def wait_for_guard(process: subprocess.Popen[str]) -> None:
    """Until the command watches for signals, by a thread of its own; before that it is Python that starts."""
    while process.poll() is None and len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 2:
        time.sleep(0.01)


# all claims are judged in three seconds where kernels are there: too near
MOMENTS = [(name, after_s) for name in LONG for after_s in (0.2, 1.5) if (name, after_s) != ("claims", 1.5)]


@pytest.mark.parametrize(("name", "after_s"), MOMENTS)
@pytest.mark.second
def test_a_long_command_ends_and_leaves_nothing(name, after_s, tmp_path):
    process = start(tmp_path, "-m", "fabrictwin", *LONG[name])
    wait_for_guard(process)
    time.sleep(after_s)
    if process.poll() is not None:
        pytest.skip("it was done before that")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in said
    assert "Warning" not in said
    serves = name == "up" and process.returncode == 0  # that is how a server ends
    # Python that is leaving already ends by the signal itself, of which a shell says 130 as well
    assert serves or process.returncode in (130, -signal.SIGINT), said
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [] or (name.startswith("sweep") and left == ["t.csv.journal"])  # from which it goes on


# a call that runs no instruction of Python's for many minutes
LONG_CALL = """
    print("busy", file=sys.stderr, flush=True)
    hashlib.pbkdf2_hmac("sha256", b"x", b"x", 2_000_000_000)
"""
BUSY = """
import hashlib, os, sys
from pathlib import Path
from fabrictwin.base.process.interrupt import InterruptGuard, unfinished
with InterruptGuard(), unfinished(Path("half")):
    Path("half").mkdir()
    Path("half/written").write_text("x")
"""


def busy(folder: Path, code: str) -> subprocess.Popen[str]:
    """Start code that ends with a long call, and return its process once it is in the call."""
    process = start(folder, "-c", code.rstrip() + LONG_CALL)
    assert process.stderr is not None
    assert process.stderr.readline() == "busy\n"
    time.sleep(1)
    return process


def test_code_that_does_not_come_back_is_ended_and_what_it_wrote_removed(tmp_path):
    """A compiler's or a kernel's call runs no instruction of Python's for many minutes."""
    process = busy(tmp_path, BUSY)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert list(tmp_path.iterdir()) == []


POOL = """
import sys, time
from fabrictwin.base.process.interrupt import leave
from fabrictwin.runs.workers import answers
try:
    for place, _ in answers(time.sleep, [0.1] * 600, 2):
        if not place:
            print("busy", file=sys.stderr, flush=True)
except KeyboardInterrupt:
    leave(130)
"""


@pytest.mark.second
def test_a_pool_that_is_ended_says_nothing(tmp_path):
    """Python's tracker of semaphores would warn of those that it removes."""
    process = start(tmp_path, "-c", POOL)
    assert process.stderr is not None
    assert process.stderr.readline() == "busy\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert process.stderr.read() == ""


def test_an_ignored_interrupt_stays_ignored(tmp_path):
    """Programs under nohup, or in the background of a shell script, start so."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from fabrictwin.base.process.interrupt import InterruptGuard\n"
        "with InterruptGuard(): signal.raise_signal(signal.SIGINT); print('on', file=sys.stderr)"
    )
    process = start(tmp_path, "-c", code)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, "on\n")


def test_a_capture_that_is_interrupted_is_removed(tmp_path):
    code = (
        "from fabrictwin.capture.pcapng import CaptureWriter\n"
        "import signal\n"
        "for how in (KeyboardInterrupt, ValueError):\n"
        "    try:\n"
        "        with CaptureWriter(how.__name__) as file:\n"
        "            file.interface('x', 1)\n"
        "            raise how\n"
        "    except how: pass\n"
    )
    assert start(tmp_path, "-c", code).wait(PATIENCE_S) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["ValueError"], "what a failure leaves may say why"


def serve(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command that serves, with its output in a pipe and its temporary files in `folder`."""
    return processes.start(
        folder,
        *("-m", "fabrictwin", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)},
    )


def ended_by(process: subprocess.Popen[str], number: int) -> int:
    """Send a signal to a process alone, and return its exit code."""
    process.send_signal(number)
    return process.wait(PATIENCE_S)


@pytest.mark.parametrize("data", [[], ["--data"]])
@pytest.mark.second
def test_a_server_that_is_up_ends_normally(tmp_path, data):
    """Ctrl-C is how a server ends, with exit code 0; what it keeps for its clients goes with it."""
    process = serve(tmp_path, "up", LAPTOP, *data)
    assert process.stdout is not None
    assert any(line.startswith("up: ") for line in process.stdout)
    assert ended_by(process, signal.SIGINT) == 0
    assert list(tmp_path.iterdir()) == []
    process.stdout.close()


@pytest.mark.second
def test_the_page_ends_normally_while_connections_are_open(tmp_path):
    """Half a request and a stream of events would hold it for longer than an interrupt may take."""
    pytest.importorskip("uvicorn", reason="the extra web is not installed")
    process = serve(tmp_path, "ui", LAPTOP, "--port", "0")
    assert process.stdout is not None
    place = urlsplit(process.stdout.readline().strip())
    body = b'{"kind": "run", "spec": {"text": "schema: 1"}}'
    head = b"host: %s\r\ncontent-type: application/json\r\n" % place.netloc.encode()
    with socket.create_connection((place.hostname, place.port), PATIENCE_S) as half:
        half.sendall(b"POST /api/jobs HTTP/1.1\r\n" + head + b"content-length: %d\r\n\r\n" % (len(body) + 1))
        half.sendall(body)
        time.sleep(1)
        assert [path.name[:13] for path in tmp_path.iterdir()] == ["fabrictwin-ui"]
        assert ended_by(process, signal.SIGINT) == 0
    assert list(tmp_path.iterdir()) == []
    process.stdout.close()


SERVES = """
import hashlib, sys
from fabrictwin.base.process.interrupt import InterruptGuard, serving
with InterruptGuard(), serving():
"""


def test_a_server_in_a_long_call_ends_normally_too(tmp_path):
    process = busy(tmp_path, SERVES)
    assert ended_by(process, signal.SIGINT) == 0


def test_what_a_process_had_for_itself_alone_goes_with_it(tmp_path):
    """The kernels' folder of one process, and a live server's: `atexit` and `finally` do not come to them."""
    code = (
        "import tempfile; tempfile.tempdir = '.'\n"
        "from pathlib import Path\n"
        "from fabrictwin.base.process import interrupt\n"
        "from fabrictwin.kernel.jit import cache_folder\n"
        "(cache_folder._of_this_process() / 'index').write_text('x')\n"
        "Path('live').mkdir(); interrupt.begin(Path('live'))\n"
        "interrupt.leave(interrupt.INTERRUPTED)\n"
    )
    assert start(tmp_path, "-c", code).wait(PATIENCE_S) == 130
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_that_a_callback_swallows_is_not_printed(monkeypatch):
    """LLVM calls back while it compiles: what is raised there goes to `sys.unraisablehook`, as a traceback."""
    from types import SimpleNamespace

    from fabrictwin.base.process.interrupt import InterruptGuard

    said: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: said.append(told.exc_type))
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    with InterruptGuard():
        for kind in (KeyboardInterrupt, ValueError):
            sys.unraisablehook(SimpleNamespace(exc_type=kind))  # type: ignore[arg-type]
        assert said == [ValueError]
    sys.unraisablehook(SimpleNamespace(exc_type=KeyboardInterrupt))  # type: ignore[arg-type]
    assert said == [ValueError, KeyboardInterrupt], "the hook is put back"


TURNED = """
import os, signal, sys, time
from fabrictwin import cli

def invoke(arguments):
    try:
        if arguments:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
    except KeyboardInterrupt:
        pass
    raise RuntimeError("Error calling __set_name__")  # as Python 3.11 does where a class is being made

cli._invoke = invoke
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("arguments", "code", "shown"), [(["interrupted"], 130, False), ([], 1, True)])
def test_an_interrupt_that_comes_out_as_another_error_is_one_all_the_same(arguments, code, shown, tmp_path):
    process = start(tmp_path, "-c", TURNED, *arguments)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "Traceback" in said) == (code, shown), said
