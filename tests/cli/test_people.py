"""What people type and see at any command: files and stdin, hints, the line that says what takes so long."""

from __future__ import annotations

import io
import re
import sys
import time
from types import ModuleType

import pytest

from fabrictwin.base import progress as drawing
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.progress import COMPILING, Progress
from fabrictwin.base.textfile import make_folder, read_text, write_text
from fabrictwin.cli import main
from fabrictwin.cluster.spec.spec import load_cluster

CLUSTER = """
hosts: {type: dgx-a100, count: 2}
network: {technology: infiniband, switch: qm8700, topology: {kind: single-switch}}
"""


@pytest.mark.parametrize(
    ("got", "known", "meant"),
    [
        ("h100", ["100G", "h100-sxm"], "h100-sxm"),  # begun
        ("qm970", ["qm8700", "qm9700"], "qm9700"),  # misspelt
        ("gpu0", ["host-0/gpu0", "host-3/gpu0"], "host-0/gpu0"),  # a part
        ("infinband", ["infiniband", "ethernet"], "infiniband"),
    ],
)
def test_hints(got, known, meant):
    assert did_you_mean(got, known) == f", did you mean {meant!r}?"


def test_no_hint_where_nothing_is_near():
    assert did_you_mean("x", ["latency", "nvlink"]) == ""


@pytest.mark.parametrize("text", [CLUSTER, "schema: 1\nname: a\ncluster:" + CLUSTER.replace("\n", "\n  ") + "\n"])
def test_a_cluster_comes_from_stdin_as_from_a_file(tmp_path, monkeypatch, capsys, text):
    (tmp_path / "c.yaml").write_text(text)
    assert main(["topology", "show", str(tmp_path / "c.yaml")]) == 0
    from_file = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["topology", "show", "-"]) == 0
    assert capsys.readouterr().out == from_file


def test_a_mistake_on_stdin_has_its_line(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"^<stdin>:3 cluster\.network\.swich: .* 'switch'"):
        load_cluster("-", io.StringIO(CLUSTER.replace("switch:", "swich:")))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^-: no such file"):
        load_cluster("-")  # without a stream `-` is a name like any other


def test_files_that_cannot_be_read_or_written_are_named(tmp_path):
    file = tmp_path / "a"
    write_text(file, "x\n\u00e9")
    assert read_text(file) == "x\n\u00e9"
    file.write_bytes(b"x\n\xff")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}:2: got bytes that are not UTF-8"):
        read_text(file)
    assert read_text(file, errors="replace") == "x\n\ufffd"
    for path in (tmp_path, file / "below"):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: cannot be written: "):
            write_text(path, "")
    with pytest.raises(ConfigError, match="is a file, expected a folder"):
        make_folder(file)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_says_that_kernels_are_compiled_and_fits_the_terminal(monkeypatch):
    """numba's part is played: the line says so between the start and the end of a compilation."""
    listeners = []
    event = ModuleType("numba.core.event")
    event.Listener = object
    event.register = lambda kind, listener: listeners.append((kind, listener))
    event.unregister = lambda kind, listener: listeners.remove((kind, listener))
    monkeypatch.setitem(sys.modules, "numba.core.event", event)
    for name, value in (("AFTER_S", 0.0), ("EVERY_S", 0.001), ("LOOK_S", 0.001)):
        monkeypatch.setattr(drawing, name, value)
    monkeypatch.setenv("COLUMNS", "64")
    screen = _Terminal()
    monkeypatch.setattr(sys, "stderr", screen)

    def plain(text: str) -> str:
        return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\u2501|\u2578|\u257a", "", text)

    def until(pattern: str) -> None:
        seen = len(screen.getvalue())
        for _ in range(500):
            if re.search(pattern, plain(screen.getvalue()[seen:])):
                return
            time.sleep(0.02)
        raise AssertionError(plain(screen.getvalue()[seen:])[-300:])

    with Progress() as progress:
        progress.stage("routing")
        until(r"routing +\d s")
        ((kind, listener),) = listeners
        assert kind == "numba:compile"
        listener.on_start(None)
        until(re.escape(f"routing{COMPILING} "))
        listener.on_end(None)
        until(r"routing +\d s")
        progress.stage("x" * 100, 0.5)
        until("\\rx{40,60}\u2026 +50% +\\d+ s\\r")
    assert not listeners
    assert screen.getvalue().endswith("\x1b[2K"), "nothing stays on the screen"


def test_progress_does_not_trip_over_numba_that_another_thread_is_importing(monkeypatch):
    """Its module of events stands in `sys.modules` before its last names do."""
    event = ModuleType("numba.core.event")
    event.register = event.unregister = lambda *_: None
    monkeypatch.setitem(sys.modules, "numba.core.event", event)
    compilations = drawing._Compilations()
    compilations.listen()
    event.Listener = object
    compilations.listen()
    assert not compilations.under_way
    compilations.close()
