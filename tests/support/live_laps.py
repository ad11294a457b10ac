"""Many programs at once on one twin, lap after lap, and what the twin holds once they have ended."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from support.live_objects import held
from support.live_pair import LiveTwin, free_port, listens

# by name: the command of both sides, with what makes it take `seconds` or `count` rounds
_KINDS = (
    ("ib_write_bw", "-F", "-D", "{seconds}", "-s", "4096"),
    ("ib_send_bw", "-F", "-D", "{seconds}", "-q", "2"),
    ("ib_read_bw", "-F", "-D", "{seconds}", "-q", "4"),
    ("ib_send_lat", "-F", "-D", "{seconds}"),
    ("ib_atomic_bw", "-F", "-D", "{seconds}"),
    ("ib_send_bw", "-F", "-D", "{seconds}", "-c", "UD", "-s", "1024"),
    ("ibv_rc_pingpong", "-n", "{count}", "-e"),
    ("ibv_srq_pingpong", "-n", "{count}", "-q", "4"),
)
ENDS_WITHIN_S = 240.0
_MOST_LISTENING_S = 60.0


@dataclass(frozen=True)
class Lap:
    """What is there after a lap: the process's memory and descriptors, objects held in words, failures."""

    resident_bytes: int
    descriptors: int
    held: tuple[str, ...]
    failed: tuple[str, ...]
    most_clients: int


def lap(live: LiveTwin, pairs: int, *, seconds: int, count: int) -> Lap:
    """Run so many pairs at once to their end; every second pair goes the other way round."""
    programs: list[tuple[str, subprocess.Popen[bytes]]] = []
    waiting: list[tuple[str, int, list[str], str]] = []
    for number in range(pairs):
        kind = _KINDS[number % len(_KINDS)]
        port = free_port()
        command = [word.format(seconds=seconds, count=count) for word in kind] + ["-p", str(port)]
        hosts = ("host-0", "host-1") if number % 2 else ("host-1", "host-0")
        programs.append((" ".join(command), _start(live, hosts[0], command)))
        waiting.append((hosts[1], port, command, " ".join(command)))
    deadline = time.monotonic() + _MOST_LISTENING_S
    for host, port, command, name in waiting:
        while not listens(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        programs.append((name, _start(live, host, [*command, "localhost"])))
    most, failed = 0, []
    deadline = time.monotonic() + ENDS_WITHIN_S
    while any(each.poll() is None for _, each in programs) and time.monotonic() < deadline:
        most = max(most, len(live.server.clients))
        time.sleep(0.2)
    for name, each in programs:
        if each.poll() is None:
            each.kill()
            failed.append(f"{name}: does not end")
        elif each.returncode:
            failed.append(f"{name}: {each.returncode}")
        each.wait()
    live.wait_for_clients_to_go()
    found: list[str] = []
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found.clear()
        live.submit(lambda: found.extend(held(live.server)))
        if not found:
            break
        time.sleep(0.1)
    return Lap(_resident_bytes(), len(os.listdir("/proc/self/fd")), tuple(found), tuple(failed), most)


def _start(live: LiveTwin, host: str, command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=live.environment(host),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
