"""The real OpenSM over ibsim: its tables for a discovered fabric, read back by dump_lfts.

What it takes is the CPU time of its thread between its log lines "building routing with" and "tables configured",
by a small library that is compiled and preloaded (`opensm_clock.c`); without a C compiler the time between them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so")
PROGRAMS = ("opensm", "ibsim", "dump_lfts")
PATIENCE_S = 900
READINGS = 5  # of the tables, until none of their blocks timed out
REFUSES = b"No routing engine able to successfully configure"


@dataclass(frozen=True)
class Routed:
    """Tables of a run, and what they took."""

    dump: Path
    wall_s: float
    cpu_s: float | None  # None without a C compiler
    log: Path


def missing() -> str:
    """Name the program that is not installed, or an empty string."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return ", ".join(absent if LIBRARY.exists() else [*absent, LIBRARY.name])


def route(net: Path, engine: str, folder: Path, *arguments: str, read: bool = True) -> Routed | None:
    """OpenSM's tables for the fabric in file `net`; None where it made none. Raises subprocess.TimeoutExpired.

    They are read back from the switches, or where not to be `read` are what OpenSM wrote down itself (`-D 0x47`).
    """
    host = re.search(r'"(H-[0-9a-f]+)"', net.read_text())
    assert host is not None
    environment = {
        **os.environ,
        "IBSIM_SOCKNAME": f"fabrictwin{os.getpid()}{engine}",
        "SIM_HOST": host[1],
        "OSM_CACHE_DIR": str(folder),
        "OSM_TMP_DIR": str(folder),
    }
    ready = folder / "ibsim.log"
    with ready.open("w") as log:
        simulator = subprocess.Popen(
            ["ibsim", "-s", "-n", "-N", "16384", "-S", "2048", "-P", "131072", str(net)],
            env=environment,
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        while "Network simulator ready" not in ready.read_text():
            assert simulator.poll() is None, ready.read_text()
            time.sleep(0.1)
        time.sleep(0.5)
        clock = _clock(folder)
        times = folder / "clock"
        once = ["-o", "--console", "off", "-f", f"{folder}/osm.log", "-e", "-D", "0x7"]
        _run_once(
            ["opensm", *once, "-R", f"{engine},no_fallback", *arguments],
            environment | {"LD_PRELOAD": f"{clock or ''} {LIBRARY}".strip(), "OPENSM_CLOCK": str(times)},
            folder,
        )
        seconds = _between(folder / "osm.log")
        if seconds is None:
            return None
        cpu_s = _cpu_s(times) if clock else None
        if not read:
            return Routed(folder / "opensm-lfts.dump", seconds, cpu_s, folder / "osm.log")
        dump = folder / "lfts"
        preloaded = environment | {"LD_PRELOAD": str(LIBRARY)}
        for _ in range(READINGS):
            with dump.open("w") as out:
                read = subprocess.run(
                    ["dump_lfts"], env=preloaded, cwd=folder, stdout=out, stderr=subprocess.PIPE, check=True
                )
            if b"failed" not in read.stderr:  # it leaves out a block that was not answered in time
                break
        else:
            raise AssertionError(read.stderr.decode())
        return Routed(dump, seconds, cpu_s, folder / "osm.log")
    finally:
        simulator.kill()
        simulator.wait()


def lanes_of(log: Path) -> dict[tuple[int, int], int]:
    """{(LID of the source, of the destination): lane} that dfsssp gave paths, of a log at level 0xF."""
    route = re.compile(r"src_lid=(\d+) to dest_lid=(\d+) on vl=(\d+)")
    found = route.findall(log.read_text(errors="replace"))
    return {(int(source), int(target)): int(lane) for source, target, lane in found}


def _run_once(command: list[str], environment: dict[str, str], folder: Path) -> None:
    """Run OpenSM until it ends, or says that its engine refuses: then it would sweep again for ever."""
    log = folder / "osm.log"
    log.unlink(missing_ok=True)
    with (folder / "osm.out").open("w") as out:
        manager = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out)
    until = time.monotonic() + PATIENCE_S
    try:
        while manager.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(command, PATIENCE_S)
            if log.exists() and REFUSES in log.read_bytes()[-4096:]:
                return
            time.sleep(0.05)
    finally:
        manager.kill()
        manager.wait()


def _clock(folder: Path) -> Path | None:
    """The preloaded clock, compiled; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    built = folder / "opensm_clock.so"
    source = Path(__file__).with_name("opensm_clock.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(built), str(source), "-ldl"], check=True)
    return built


def _cpu_s(times: Path) -> float:
    begin, end = (int(line.split()[1]) for line in times.read_text().splitlines()[:2])
    return (end - begin) / 1e9


def _between(log: Path) -> float | None:
    """Seconds from 'building routing with' to 'tables configured', None where a line is missing."""
    stamp = re.compile(r"(\w{3} \d\d \d\d:\d\d:\d\d \d{6}) .*(building routing with|tables configured)")
    found = {
        match[2]: match[1] for match in map(stamp.match, log.read_text(errors="replace").splitlines()) if match
    }
    if len(found) < 2:
        return None
    begin, end = (
        datetime.strptime(f"2000 {found[key]}", "%Y %b %d %H:%M:%S %f")
        for key in ("building routing with", "tables configured")
    )
    return (end - begin).total_seconds()
