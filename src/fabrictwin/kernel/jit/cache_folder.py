"""Cache folders, and who may write in them.

numba unpickles what it finds in its cache, so whoever can write there runs code as the reader. A folder serves
only where it is the user's own, with mode 0700, no link, and nobody else can put another in its place: every
folder on the way to it belongs to the user or to root and is not writable by others, or is sticky (as /tmp is,
where only a folder's owner can move it). Where no such folder can be had, a fresh private one serves this process
and is removed with it.

`FABRICTWIN_CACHE` names the place, otherwise `$XDG_CACHE_HOME/fabrictwin` (XDG Base Directory Specification: an
absolute path, `~/.cache` by default). numba is not imported here.
"""

from __future__ import annotations

import atexit
import grp
import logging
import os
import pwd
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

PRIVATE = 0o700
_MOST_LINKS = 40  # on the way to a folder, as Linux's own limit


class UntrustedFolderError(Exception):
    """A folder that somebody else could write in, or that cannot be made."""


def cache_base() -> Path | None:
    """Return the place that caches are kept in, absolute; None where neither a variable nor a home names one."""
    named = os.environ.get("FABRICTWIN_CACHE")
    if named:
        return Path(os.path.abspath(named))
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    return Path(base) / "fabrictwin" if os.path.isabs(base) else None


def cache_folder(name: str) -> Path:
    """Return the folder `name` (such as `kernels/0123abcd`) of the cache, private and there."""
    base = cache_base()
    try:
        if base is None:
            raise UntrustedFolderError("no home folder is known")
        return own_folder(base.joinpath(name))
    except UntrustedFolderError as error:
        _warn(f"nothing is kept between runs: {error}; FABRICTWIN_CACHE names another folder for the cache")
        folder = _of_this_process() / name
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        return folder


def own_folder(path: Path) -> Path:
    """Make or take `path`, the user's own with mode 0700.

    A folder that others may only read is tightened. Raises UntrustedFolderError for one that others could have
    written in, for a link, for a folder of somebody else, and where it cannot be made or written.
    """
    try:
        _make(path)
        _check_way(path.parent)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise UntrustedFolderError(f"{path} is no folder")
        if status.st_uid != os.geteuid():
            raise UntrustedFolderError(f"{path} belongs to user {status.st_uid}")
        if _others_write(status):
            raise UntrustedFolderError(f"{path} is writable by others")
        if stat.S_IMODE(status.st_mode) != PRIVATE:
            path.chmod(PRIVATE)
    except OSError as error:
        raise UntrustedFolderError(f"{error.filename or path}: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UntrustedFolderError(f"{path} cannot be written")
    return path


def _make(path: Path) -> None:
    """Make `path` and what is missing above it, each private from the start; what is there stays as it is."""
    missing = []
    while not path.exists() and not path.is_symlink():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=PRIVATE, exist_ok=True)


def _check_way(path: Path) -> None:
    """Raise UntrustedFolderError where others could exchange a folder on the way to `path`, links followed."""
    at, links = Path("/"), 0
    parts = list(reversed(path.parts[1:]))
    _check_step(at)
    while parts:
        part = parts.pop()
        if part == "..":  # only in a link's text; `at` holds no links
            at = at.parent
            continue
        step = at / part
        if stat.S_ISLNK(step.lstat().st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise UntrustedFolderError(f"{path}: too many links")
            target = Path(os.readlink(step))
            if step.lstat().st_uid not in (0, os.geteuid()):
                raise UntrustedFolderError(f"{step} is a link of user {step.lstat().st_uid}")
            if target.is_absolute():
                at = Path("/")
            parts += reversed([name for name in target.parts if name != "/"])
            continue
        at = step
        _check_step(at)


def _check_step(folder: Path) -> None:
    status = folder.lstat()
    if status.st_uid not in (0, os.geteuid()):
        raise UntrustedFolderError(f"{folder} belongs to user {status.st_uid}")
    if _others_write(status) and not status.st_mode & stat.S_ISVTX:
        raise UntrustedFolderError(f"{folder} is writable by others")


def _others_write(status: os.stat_result) -> bool:
    by_group = bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid)
    return by_group or bool(status.st_mode & stat.S_IWOTH)


def _is_private_group(gid: int) -> bool:
    """Tell the user's own group (named as the user, nobody else in it: what a umask of 002 is made for)."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


@cache
def _warn(text: str) -> None:
    """Say it once a process, on stderr where no logging is set up."""
    logging.getLogger("fabrictwin").warning(text)


private_folders: list[Path] = []  # to be removed where a process ends without what `atexit` knows


@cache
def _of_this_process() -> Path:
    """A fresh private folder, removed when the process that made it ends."""
    folder, owner = Path(tempfile.mkdtemp(prefix="fabrictwin-")), os.getpid()
    private_folders.append(folder)

    def remove() -> None:
        if os.getpid() == owner:  # not a child that was forked off
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
