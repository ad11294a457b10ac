"""The real OpenSM over ibsim: its tables for a discovered fabric, read back by dump_lfts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from datetime import datetime
from pathlib import Path

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so")
PROGRAMS = ("opensm", "ibsim", "dump_lfts")
PATIENCE_S = 900


def missing() -> str:
    """What is not installed, or an empty string."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return ", ".join(absent if LIBRARY.exists() else [*absent, LIBRARY.name])


def route(net: Path, engine: str, folder: Path, *arguments: str) -> tuple[Path, float] | None:
    """The dump of OpenSM's tables for the fabric in file `net`, and the seconds between its two log lines.

    None where it made no tables. Raises subprocess.TimeoutExpired.
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
        environment["LD_PRELOAD"] = str(LIBRARY)
        once = ["-o", "--console", "off", "-f", f"{folder}/osm.log", "-e", "-D", "0x7"]
        subprocess.run(
            ["opensm", *once, "-R", f"{engine},no_fallback", *arguments],
            env=environment,
            cwd=folder,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        seconds = _between(folder / "osm.log")
        if seconds is None:
            return None
        dump = folder / "lfts"
        with dump.open("w") as out:
            subprocess.run(["dump_lfts"], env=environment, cwd=folder, stdout=out, check=True)
        return dump, seconds
    finally:
        simulator.kill()
        simulator.wait()


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
