"""Kill programs in the midst of their traffic: the twin lives, their peers end with an error, everything is freed.

    python benchmarks/live_kills.py [--kills 200] [--first 0] [--seed 1] [--clock virtual] [--technology ethernet]
                                    [--only rping]

Each round starts a server and a client of one kind, waits until messages cross the twin, waits a random time more,
and kills one of the two. The other has to end by itself, not with 0. Then no object of theirs may be left. A line
for each kind at the end; the exit code is 1 where anything went wrong. Round n of a seed is the same in every run:
--first goes on where an earlier run was broken off.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.clusters import boxes
from support.live_objects import held
from support.live_pair import LiveTwin, free_port, listens

ENDS_WITHIN_S = 60.0
BEGINS_WITHIN_S = 60.0
_ADDRESS = "10.0.0.1"
_MANY = "1000000"

# by name: what both run, and whether they meet by rdma_cm
KINDS: dict[str, tuple[list[str], bool]] = {
    "ib_write_bw": (["ib_write_bw", "-F", "-n", _MANY], False),
    "ib_write_bw -b": (["ib_write_bw", "-F", "-b", "-n", _MANY], False),
    "ib_write_bw -R": (["ib_write_bw", "-F", "-R", "-n", _MANY], True),
    "ib_write_lat": (["ib_write_lat", "-F", "-n", _MANY], False),
    "ib_send_bw": (["ib_send_bw", "-F", "-n", _MANY], False),
    "ib_send_bw -e": (["ib_send_bw", "-F", "-e", "-n", _MANY], False),
    "ib_send_bw -q 4": (["ib_send_bw", "-F", "-q", "4", "-n", _MANY], False),
    "ib_send_lat": (["ib_send_lat", "-F", "-n", _MANY], False),
    "ib_read_bw": (["ib_read_bw", "-F", "-n", _MANY], False),
    "ib_atomic_bw": (["ib_atomic_bw", "-F", "-n", _MANY], False),
    "ibv_rc_pingpong": (["ibv_rc_pingpong", "-n", _MANY], False),
    "ibv_srq_pingpong -e": (["ibv_srq_pingpong", "-e", "-n", _MANY], False),
    "rping": (["rping", "-C", _MANY], True),
}
# Who waits for ever, as on hardware, once the other is killed: its own messages had all been acknowledged, and
# nobody tells a queue pair that the other one is gone.
# With -R perftest polls for the other's last word and reads no event of rdma_cm, which alone says
# that it is gone (rdma_read_keys() in its perftest_communication.c).
_RECEIVERS = ("ib_send_bw", "ib_send_bw -e", "ib_send_bw -q 4", "ib_write_bw -R")
_BOTH = ("ib_send_lat", "ib_write_lat", "ibv_rc_pingpong", "ibv_srq_pingpong -e")
_ENDS_AT_DISCONNECT = {"rping"}  # as its other side does: with 0


def commands(name: str, ethernet: bool) -> tuple[list[str], list[str], int | None]:
    """Server, client, and the TCP port that they meet at (None: rdma_cm)."""
    command, by_cm = KINDS[name]
    if ethernet and command[0].startswith("ibv_"):
        command = [*command, "-g", "1"]  # without it they use LIDs
    if by_cm:
        if command[0] == "rping":
            return [*command, "-s"], [*command, "-c", "-a", _ADDRESS], None
        return command, [*command, _ADDRESS], None
    port = free_port()
    both = [*command, "-p", str(port)]
    return both, [*both, "localhost"], port


def kill_one(live: LiveTwin, name: str, chance: random.Random) -> str:
    """Play a round; returns what went wrong, or nothing."""
    server_command, client_command, port = commands(name, live.server.world.adapters[0].ethernet)
    server = start(live, "host-0", server_command)
    if not within(
        BEGINS_WITHIN_S, lambda: listens(port) if port else bool(list(live.server.connections.listening()))
    ):
        return finish((server,), "the server does not listen")
    client = start(live, "host-1", client_command)
    before = live.server.statistics.messages
    if not within(BEGINS_WITHIN_S, lambda: live.server.statistics.messages > before + 20):
        return finish((server, client), "no traffic")
    time.sleep(chance.uniform(0.0, 0.3))
    victim, other = chance.sample((server, client), 2)
    waits = name in _BOTH or (name in _RECEIVERS and victim is client)
    victim.kill()
    victim.wait()
    wrong = ""
    if within(3.0 if waits else ENDS_WITHIN_S, lambda: other.poll() is not None):
        wrong = "" if other.returncode or name in _ENDS_AT_DISCONNECT else "the other one ended with 0"
    elif not waits:
        wrong = f"the other one does not end (killed: {'server' if victim is server else 'client'})"
    return finish((server, client), wrong)


def start(live: LiveTwin, host: str, command: list[str]) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as output:
        return subprocess.Popen(command, env=live.environment(host), stdout=output, stderr=output)


def finish(programs: tuple[subprocess.Popen[bytes], ...], said: str) -> str:
    for program in programs:
        if program.poll() is None:
            program.kill()
        program.wait()
    return said


def within(seconds: float, done: object) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def left(live: LiveTwin) -> str:
    """Return what programs that are gone have left."""
    live.wait_for_clients_to_go()
    found: list[str] = []
    within(10.0, lambda: not (found.clear() or live.submit(lambda: found.extend(held(live.server))) or found))
    return ", ".join(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the round to begin with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(KINDS), help="rounds of this program alone")
    parser.add_argument("--clock", default="real", choices=("real", "virtual"))
    parser.add_argument("--technology", default="infiniband", choices=("infiniband", "ethernet"))
    options = parser.parse_args()
    wrong: collections.Counter[str] = collections.Counter()
    killed: collections.Counter[str] = collections.Counter()
    with LiveTwin(boxes(2, technology=options.technology), engine="packet", clock=options.clock) as live:
        descriptors = len(os.listdir("/proc/self/fd"))
        for number in range(options.first, options.kills):
            chance = random.Random(f"{options.seed}/{number}")
            name = options.only or chance.choice(sorted(KINDS))
            said = kill_one(live, name, chance) or left(live)
            killed[name] += 1
            if said:
                wrong[name] += 1
                print(f"kill {number}: {name}: {said}", flush=True)
        ended = live.run("host-1", ["ibv_devinfo"])
        live.wait_for_clients_to_go()
        kept = len(os.listdir("/proc/self/fd")) - descriptors
    print("| program | killed | went wrong |\n|---|---|---|")
    for name in sorted(killed):
        print(f"| {name} | {killed[name]} | {wrong[name]} |")
    says = "DOES NOT ANSWER" if ended.code else "answers"
    print(f"{sum(killed.values())} kills; the twin {says} still; descriptors {kept:+d}")
    return int(bool(wrong) or bool(ended.code) or kept > 0)


if __name__ == "__main__":
    sys.exit(main())
