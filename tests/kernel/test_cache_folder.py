"""Folders of the cache: the user's own, private, and never one that somebody else could have written in."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from numba import config

from fabrictwin.kernel.jit import cache_folder as module
from fabrictwin.kernel.jit.cache_folder import UntrustedFolderError, cache_base, cache_folder, own_folder

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand a folder to somebody else")


def mode(path: Path) -> int:
    """Permission bits, the sticky one included."""
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_made_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        folder = own_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [mode(path) for path in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3


def test_a_folder_that_others_read_is_tightened_and_kept(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (folder / "index").write_text("mine")
    assert own_folder(folder) == folder
    assert mode(folder) == 0o700
    assert (folder / "index").read_text() == "mine"


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o702])
def test_a_folder_that_others_can_write_in_is_refused(tmp_path, bits):
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(UntrustedFolderError, match="writable by others"):
        own_folder(folder)
    assert mode(folder) == bits  # what may be planted in it is not made trusted


def test_a_parent_that_others_can_write_in_is_refused_unless_it_is_sticky(tmp_path):
    open_ = tmp_path / "open"
    open_.mkdir()
    open_.chmod(0o777)
    with pytest.raises(UntrustedFolderError, match="open is writable by others"):
        own_folder(open_ / "kernels")
    open_.chmod(0o1777)
    assert own_folder(open_ / "kernels") == open_ / "kernels"


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(UntrustedFolderError, match="is no folder"):
        own_folder(tmp_path / "link")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(UntrustedFolderError):
        own_folder(tmp_path / "dangling")


def test_a_link_on_the_way_leads_to_folders_that_are_looked_at_too(tmp_path):
    (tmp_path / "data" / "cache").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".cache").symlink_to("../data/cache")
    assert own_folder(tmp_path / "home" / ".cache" / "kernels").is_dir()
    (tmp_path / "data").chmod(0o777)
    with pytest.raises(UntrustedFolderError, match="data is writable by others"):
        own_folder(tmp_path / "home" / ".cache" / "kernels")


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(UntrustedFolderError):
        own_folder(tmp_path / "one" / "kernels")


@as_root
def test_a_folder_of_somebody_else_is_refused_though_private(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(UntrustedFolderError, match=f"belongs to user {NOBODY}"):
        own_folder(folder)
    (tmp_path / "deeper").mkdir()
    os.chown(tmp_path / "deeper", NOBODY, NOBODY)
    with pytest.raises(UntrustedFolderError, match=f"deeper belongs to user {NOBODY}"):
        own_folder(tmp_path / "deeper" / "kernels")
    (tmp_path / "link").symlink_to(tmp_path)
    os.lchown(tmp_path / "link", NOBODY, NOBODY)
    with pytest.raises(UntrustedFolderError, match=f"is a link of user {NOBODY}"):
        own_folder(tmp_path / "link" / "kernels")


def test_a_relative_place_is_made_absolute_and_a_relative_xdg_place_ignored(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FABRICTWIN_CACHE", "here")
    assert cache_base() == tmp_path / "here"
    monkeypatch.delenv("FABRICTWIN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "there")
    assert cache_base() == tmp_path / ".cache" / "fabrictwin"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_base() == tmp_path / "xdg" / "fabrictwin"


_ASK = """
import sys
from fabrictwin.kernel.jit.cache_folder import cache_folder
folder = cache_folder("kernels/0123")
assert folder == cache_folder("kernels/0123") and folder.is_dir()
assert "numba" not in sys.modules
print(folder, oct(folder.stat().st_mode & 0o7777))
"""


def ask(**environment: str) -> tuple[Path, str, str]:
    """(folder, mode, stderr) of a fresh process."""
    found = subprocess.run(
        [sys.executable, "-c", _ASK],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    folder, bits = found.stdout.split()
    return Path(folder), bits, found.stderr


def test_where_nothing_can_be_had_a_fresh_folder_serves_the_process_and_goes_with_it(tmp_path):
    (tmp_path / "file").write_text("")
    folder, bits, said = ask(FABRICTWIN_CACHE=str(tmp_path / "file"))
    assert folder.parent.parent.parent == Path(tempfile.gettempdir())
    assert bits == "0o700"
    assert not folder.parent.parent.exists()
    assert said.count("nothing is kept between runs") == 1
    assert "Traceback" not in said


@as_root
def test_a_user_without_a_home_takes_no_folder_that_was_planted(monkeypatch):
    """HOME=/ in a container with a random uid, and a folder of a name that can be guessed with a pickle in it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        planted = Path(folder) / "fabrictwin-54321" / "kernels" / "0123"
        planted.mkdir(parents=True)
        (planted / "index.nbi").write_bytes(pickle.dumps("x"))
        for at in (planted, *planted.parents[:2]):
            os.chown(at, NOBODY, NOBODY)
            at.chmod(0o777)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("HOME", "/")
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.delenv("FABRICTWIN_CACHE", raising=False)
        without_home = as_user(54321)
        monkeypatch.setenv("FABRICTWIN_CACHE", str(planted.parent.parent))
        for taken, bits in (without_home, as_user(54321)):
            assert planted.parents[1] not in taken.parents
            assert taken.parents[2] == Path(folder)
            assert bits == 0o700


def as_user(uid: int) -> tuple[Path, int]:
    """(folder, mode) that a process of another user takes for kernels."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            module._of_this_process.cache_clear()  # a test before may have had one, as another user
            folder = cache_folder("kernels/0123")
            os.write(writing, f"{folder} {folder.stat().st_mode & 0o7777}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    folder, bits = answer.split()
    return Path(folder), int(bits)


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled")
@pytest.mark.second
def test_kernels_are_compiled_without_a_place_to_keep_them(tmp_path):
    """The whole way: numba caches in the private folder, and nothing of it is left."""
    (tmp_path / "file").write_text("")
    program = (
        "from fabrictwin.kernel.flow.ring_latency import best_runs\n"
        "import numpy as np\n"
        "from numba import config\n"
        "best = np.zeros(1)\n"
        "best_runs(np.array([0, 2]), np.array([1.0, 2.0]), np.array([1]), best)\n"
        "print(best[0], config.CACHE_DIR)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "FABRICTWIN_CACHE": str(tmp_path / "file")},
        capture_output=True,
        text=True,
        check=True,
    )
    best, folder = found.stdout.split()
    assert best == "2.0"
    assert not Path(folder).exists()


def test_the_same_folder_is_given_for_the_same_name(monkeypatch, tmp_path):
    monkeypatch.setenv("FABRICTWIN_CACHE", str(tmp_path / "cache"))
    assert cache_folder("channels") == cache_folder("channels") == tmp_path / "cache" / "channels"
