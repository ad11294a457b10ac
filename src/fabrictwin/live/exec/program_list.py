"""Which programs run where: one command, one a host, or a file of `host: command` lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.textfile import read_text
from fabrictwin.live.exec.launch import Program


def known_host(name: str, hosts: Sequence[str], **where: object) -> str:
    """A host's name, seen to be one. Raises ConfigError."""
    if name not in hosts:
        raise ConfigError(
            f"got host {name!r}, expected one such as {hosts[0]!r}{did_you_mean(name, hosts)}",
            **where,  # type: ignore[arg-type]
        )
    return name


def on_every_host(template: str, hosts: Sequence[str]) -> list[Program]:
    """One program a host: `{rank}`, `{host}` and `{size}` stand for the host's number, its name, and their number.

    Raises ConfigError.
    """
    programs = []
    for rank, host in enumerate(hosts):
        text = template.replace("{rank}", str(rank)).replace("{host}", host).replace("{size}", str(len(hosts)))
        programs.append(Program(host, _words(text, key="--all")))
    return programs


def from_file(path: Path, hosts: Sequence[str]) -> list[Program]:
    """Programs of a file: a line `host: command` each; empty lines and those after # are left out.

    Raises ConfigError with the line.
    """
    programs = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        host, colon, command = text.partition(":")
        if not colon:
            raise ConfigError(f"got {text!r}, expected 'host: command'", file=path, line=number)
        known_host(host.strip(), hosts, file=path, line=number)
        programs.append(Program(host.strip(), _words(command, file=path, line=number)))
    if not programs:
        raise ConfigError("got no line, expected 'host: command'", file=path)
    return programs


def _words(text: str, **where: object) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"got {text!r}: {error}", **where) from None  # type: ignore[arg-type]
    if not words:
        raise ConfigError("got an empty command", **where)  # type: ignore[arg-type]
    return words
