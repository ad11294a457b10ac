"""OpenSM at work over ibsim on a fabric as ibnetdiscover prints it, with the LIDs that the file names."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from support.real_tools import PRELOAD

_LID = re.compile(
    r'^Switch.*"S-([0-9a-f]{16})".* lid (\d+) lmc|^\[\d+\]\(([0-9a-f]+)\).*# lid (\d+) lmc', re.MULTILINE
)


def lids(text: str) -> dict[int, int]:
    """LIDs by port GUID."""
    return {int(m[1] or m[3], 16): int(m[2] or m[4]) for m in _LID.finditer(text)}


class OverIbsim:
    """ibsim with a resident OpenSM; tools run as its clients."""

    def __init__(self, net: Path, folder: Path, host: str, *options: str) -> None:
        self.folder, self.host = folder, host
        self.name = f"ibsim-{os.getpid()}-{os.urandom(3).hex()}"
        cache = "".join(
            f"0x{guid:016x} 0x{lid:04x} 0x{lid:04x}\n\n" for guid, lid in lids(net.read_text()).items()
        )
        (folder / "guid2lid").write_text(cache)
        self._log = folder / "ibsim.log"
        self._programs = [self._start(["ibsim", "-s", "-n", str(net)], {"IBSIM_SOCKNAME": self.name})]
        self._wait(self._log, "Network simulator ready")
        time.sleep(0.3)
        self.log = folder / "osm-ibsim.log"
        (folder / "opensm.conf").write_text("force_log_flush TRUE\n")
        command = ["opensm", "--config", str(folder / "opensm.conf"), "--console", "off", "-f", str(self.log)]
        self._programs.append(self._start([*command, *options], self.environment(host)))
        self._wait(self.log, "SUBNET UP")

    def environment(self, host: str) -> dict[str, str]:
        mine = {"IBSIM_SOCKNAME": self.name, "SIM_HOST": host, "LD_PRELOAD": str(PRELOAD)}
        return os.environ | mine | {"OSM_CACHE_DIR": str(self.folder), "OSM_TMP_DIR": str(self.folder)}

    def _start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._log.open("a") as log:
            return subprocess.Popen(command, env=os.environ | environment, cwd=self.folder, stdout=log, stderr=log)

    def _wait(self, log: Path, line: str) -> None:
        until = time.monotonic() + 120
        while not (log.exists() and line in log.read_text(errors="replace")):
            assert time.monotonic() < until, f"no {line!r} in {log}"
            assert all(program.poll() is None for program in self._programs), self._log.read_text()
            time.sleep(0.1)

    def __enter__(self) -> OverIbsim:
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self._programs):
            program.kill()
            program.wait()

    def run(self, *command: str, host: str = "", timeout: float = 60) -> tuple[int, str]:
        """(exit code, what a tool prints, complaints too)."""
        return run_tool(command, self.environment(host or self.host), self.folder, timeout)


def run_tool(
    command: tuple[str, ...], environment: dict[str, str], folder: Path, timeout: float
) -> tuple[int, str]:
    """(exit code, what a tool prints and complains of), without the line of libumad2sim."""
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout)
    complaints = "\n".join(line for line in done.stderr.splitlines() if "sim_connect: attached" not in line)
    return done.returncode, done.stdout + complaints
