"""Targets of `fuzz.py`: what commands take from a line, the environment, and this machine's own files."""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from fuzzing.target import Target, folder, of_file

_CLUSTER = b"""schema: 1
name: small
cluster:
  hosts: {type: dgx-h100, count: 2}
  network: {technology: infiniband, topology: {kind: fat-tree}, switch: qm9700}
"""
# commands that only print, with the options among which none names a file to write
_LINES = [
    b"catalog dgx-h100 --json",
    b"catalog --kind switch",
    b"catalog sn5600",
    b"cost c.yaml --years 3 --json",
    b"ibstat c.yaml --host host-0 mlx5_0 1",
    b"ibv_devinfo c.yaml --host host-1 -d mlx5_3 -v",
    b"ibdev2netdev c.yaml --host host-0 -v",
    b"show_gids c.yaml --host host-0 mlx5_0",
    b"topology show c.yaml --json",
    b"topology matrix c.yaml --host host-0",
    b"expect dgx-h100 --hosts 1,2 --tests all_reduce_perf --sizes 64M,1G --nccl-version 2.21.5 --tolerance 0.1 --format nhc",
    b"diff r1 r2 --fail-over 1%",
    b"lint c.yaml --json",
    b"doctor nccl.log --no-twin --hardware dgx-h100 --hosts 2 --json",
    b"pcap nccl.log --json",
    b"init --list",
    b"--version",
    b"schema",
]
_KEPT = ("--help", "-h", "--version", "--json")


def _command_line() -> Target:
    """A line of words as a shell would split it."""
    import shlex

    import click

    from fabrictwin.cli import main, root
    from fabrictwin.diagnosis.expectation import figures

    place = folder() / "here"
    place.mkdir()
    (place / "c.yaml").write_bytes(_CLUSTER)
    (place / "nccl.log").write_bytes(b"host-0:1:2 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\n")
    os.chdir(place)
    known = {line.split()[0].decode() for line in _LINES}
    figures.figures = lambda asked, stage: []  # what it costs is in proportion to what is asked

    def writes(command: click.Command, words: list[str]) -> bool:
        """Return True where a word may be an option that names a file."""
        names = [
            name
            for one in (command, *getattr(command, "commands", {}).values())
            for option in one.params
            if isinstance(option.type, click.Path) and isinstance(option, click.Option)
            for name in option.opts
        ]
        return any(word.startswith(name) or name.startswith(word.split("=")[0]) for word in words if word[:1] == "-"
                   and word not in _KEPT for name in names)  # fmt: skip

    def read(data: bytes) -> None:
        try:
            words = shlex.split(data.decode("utf-8", "surrogateescape").replace("\0", ""))
        except ValueError:
            return
        if not words or words[0] not in known:
            words = ["catalog", *words]
        command = root.commands.get(words[0])
        if command is not None and (writes(command, words[1:]) or (words[0] == "init" and "--list" not in words)):
            return
        if any(word.startswith("/dev/") or (word.strip("./") == "" and word) for word in words):
            return  # the machine's own folders are no input
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape")
        with redirect_stdout(out), redirect_stderr(out):
            main(words)

    return Target(_LINES, read)


def _completion() -> Target:
    """A line as a shell hands it over to be completed."""
    from click.shell_completion import BashComplete

    from fabrictwin.cli import root

    path = folder() / "c.yaml"
    path.write_bytes(_CLUSTER)
    os.chdir(folder())

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape").replace("\0", "")
        with suppress(ValueError):  # of shlex, as click has it
            os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = text, str(len(text.split()))
            BashComplete(root, {}, "fabrictwin", "_FABRICTWIN_COMPLETE").complete()

    return Target(
        [
            b"fabrictwin ibstat c.yaml --host ho",
            b"fabrictwin catalog dgx",
            b"fabrictwin compare c.yaml --fabrics a,b",
        ],
        read,
    )


def _search_cache() -> Target:
    """A file of the cache of searched channels: damaged, it is not there."""
    from dataclasses import asdict

    from fabrictwin.nccl.search.graph_search import Channels
    from fabrictwin.nccl.search.search_cache import DAMAGED, _read

    kept = Channels(4, 20.0, 12.5, 1, 3, 0, True, 1, 2, False, ((0, 1, 2),), ((0, 1),), 3.0, 1.5)  # type: ignore[arg-type]
    return Target([json.dumps(asdict(kept)).encode()], lambda data: _read(data.decode()), DAMAGED)


def _hub() -> Target:
    """Files of Hugging Face's cache: the branch's commit, then a model's configuration."""
    from fabrictwin.workload.model.huggingface_cache import config_of
    from fabrictwin.workload.model.huggingface_families import load_model

    commit = "0123456789abcdef0123456789abcdef01234567"
    model = folder() / "hub" / "models--org--name"
    (model / "refs").mkdir(parents=True)
    (model / "snapshots" / commit).mkdir(parents=True)
    os.environ["HF_HUB_CACHE"] = str(folder() / "hub")
    config = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
              "vocab_size": 1000, "intermediate_size": 2048, "_name_or_path": "x"}  # fmt: skip

    def read(data: bytes) -> None:
        head, _, rest = data.partition(b"\n")
        (model / "refs" / "main").write_bytes(head)
        (model / "snapshots" / commit / "config.json").write_bytes(rest)
        load_model(config_of("org/name", folder()))

    return Target([commit.encode() + b"\n" + json.dumps(config).encode()], read)


def _programs() -> Target:
    """The head of an executable that `exec` would preload into."""
    from fabrictwin.live.exec.preloadable import why_not

    elf = bytearray(b"\x7fELF\2\1\1" + bytes(57))
    struct.pack_into("<HHIQQQIHHHHHH", elf, 16, 3, 0x3E, 1, 0, 64, 120, 0, 64, 56, 1, 64, 3, 2)
    segment = struct.pack("<IIQQQQQQ", 3, 4, 0, 0, 0, 10, 10, 1)
    sections = bytes(64) + struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, 312, 12, 0, 0, 1, 0) * 2
    whole = bytes(elf) + segment + sections + b"\0.go.buildinfo\0"
    with Path(sys.executable).open("rb") as file:
        python = file.read(8192)
    return Target([whole, python, b"#!/bin/sh\necho\n", b"#!\n"], of_file("program", why_not))


def _twin_answers() -> Target:
    """Answers of a running twin's socket, as `exec` asks it."""
    from fabrictwin.live import wire
    from fabrictwin.live.exec.running_twin import ask

    path = folder() / "twin.sock"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen(4)
    said: list[bytes] = [b""]

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.send(said[0])

    threading.Thread(target=serve, daemon=True).start()

    def read(data: bytes) -> Any:
        said[0] = data
        return ask(path, wire.Kind.HOSTS, b"")

    return Target([bytes(wire.REPLY.size) + b"host-0\nhost-1", b"\1" * wire.REPLY.size], read)


COMMANDS: dict[str, Callable[[], Target]] = {
    "command-line": _command_line,
    "completion": _completion,
    "search-cache": _search_cache,
    "hub": _hub,
    "executables": _programs,
    "twin-answers": _twin_answers,
}
