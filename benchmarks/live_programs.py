"""Which unmodified programs run on the twin: a table of program, transport and option with what became of each.

    python benchmarks/live_programs.py [--technology infiniband|ethernet] [--only WORD] [--iterations 200]

Needs Debian's ibverbs-utils, perftest, rdmacm-utils and ibverbs-providers, and a C compiler. Two hosts of one
adapter under one leaf; server on the first, client on the second. A program that refuses a combination is shown
with its own words.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.clusters import boxes
from support.live_pair import free_port, listens

from fabrictwin.live.exec import launch
from fabrictwin.live.served_twin import ServedTwin

PATIENCE_S = 120.0
_TRANSPORTS = {"write": ("RC", "UC"), "send": ("RC", "UC", "UD"), "read": ("RC",), "atomic": ("RC",)}
_OPTIONS: tuple[tuple[str, ...], ...] = ((), ("-e",), ("-q", "4"), ("-b",), ("-I", "64"), ("-R",))
_ADDRESS = "10.0.0.1"


@dataclass(frozen=True)
class Case:
    """A server and its client."""

    program: str
    transport: str
    option: str
    server: list[str]
    client: list[str]
    port: int | None  # of TCP; None: rdma_cm alone


def cases(iterations: int) -> Iterator[Case]:
    """All that are tried."""
    for transport in ("rc", "uc", "ud", "srq"):
        for option in ((), ("-e",), ("-c",)):
            port = free_port()
            command = [f"ibv_{transport}_pingpong", "-n", str(iterations), "-p", str(port), *option]
            command += ["-s", "1024"] if transport == "ud" else []
            yield Case(command[0], transport.upper(), " ".join(option), command, [*command, "localhost"], port)
    for verb, transports in _TRANSPORTS.items():
        for kind in ("bw", "lat"):
            for transport in transports:
                for option in _OPTIONS:
                    yield _perftest(f"ib_{verb}_{kind}", transport, option, iterations)
    for name, more in (
        ("rping", ["-C", "20", "-V"]),
        ("ucmatose", []),
        ("udaddy", []),
        ("rstream", ["-S", "64", "-C", "50"]),
    ):
        server = [name, *(["-s"] if name == "rping" else []), *more]
        client = [name, *(["-c", "-a"] if name == "rping" else ["-s"]), _ADDRESS, *more]
        yield Case(name, "UD" if name == "udaddy" else "RC", "", server, client, None)


def _perftest(program: str, transport: str, option: tuple[str, ...], iterations: int) -> Case:
    port = free_port()
    command = [program, "-F", "-p", str(port), "-c", transport, "-n", str(iterations), *option]
    by_cm = "-R" in option
    return Case(
        program,
        transport,
        " ".join(option),
        command,
        [*command, _ADDRESS if by_cm else "localhost"],
        None if by_cm else port,
    )


def outcome(served: ServedTwin, case: Case) -> str:
    """`ok` and the figure that the client prints, or why not."""
    environments = [
        launch.environment(host, served.socket, served.server.tree(host), os.environ)
        for host in ("host-0", "host-1")
    ]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    server = subprocess.Popen(case.server, env=environments[0], **pipes)  # type: ignore[call-overload]
    client = None
    try:
        deadline = time.monotonic() + PATIENCE_S
        while server.poll() is None and time.monotonic() < deadline:
            if listens(case.port) if case.port is not None else list(served.server.connections.listening()):
                break
            time.sleep(0.02)
        if server.poll() is not None:
            return f"refused: {_words(server.communicate()[0])}"
        client = subprocess.Popen(case.client, env=environments[1], **pipes)  # type: ignore[call-overload]
        said = client.communicate(timeout=PATIENCE_S)[0]
        heard = server.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        return f"does not end within {PATIENCE_S:.0f} s"
    finally:
        for program in (server, client):
            if program is not None and program.poll() is None:
                program.kill()
                program.communicate()
    if client.returncode or (server.returncode and case.program != "rping"):
        return f"failed: {_words(said if client.returncode else heard)}"
    return f"ok{_figure(said)}"


def _words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("----")]
    told = [line for line in lines if "WARNING" not in line and "Waiting for client" not in line]
    return told[0][:90] if told else "without a word"


def _figure(output: str) -> str:
    found = re.findall(r"([\d.]+ (?:usec/iter))", output)
    if found:
        return f", {found[-1]}"
    rows = re.findall(r"^ \d+ +\d+ +([\d.]+) +([\d.]+)", output, re.M)
    if rows:
        return f", {rows[-1][1]} MB/s" if "BW average" in output else f", {rows[-1][0]} us least"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--technology", default="infiniband", choices=("infiniband", "ethernet"))
    parser.add_argument("--only", default="", help="programs with this in their name")
    parser.add_argument("--iterations", type=int, default=200)
    options = parser.parse_args()
    served = ServedTwin(boxes(2, technology=options.technology))
    served.start()
    print("| program | transport | options | result |\n|---|---|---|---|")
    try:
        for case in cases(options.iterations):
            if options.only in case.program:
                result = outcome(served, case)
                print(f"| {case.program} | {case.transport} | {case.option} | {result} |", flush=True)
    finally:
        served.close()


if __name__ == "__main__":
    main()
