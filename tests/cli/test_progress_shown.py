"""Long commands say how far they are: a share that begins low, never falls, and is read while they work."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fabrictwin.base.progress import Measure, Progress
from fabrictwin.cli import main

LAPTOP = str(Path(__file__).parents[2] / "examples" / "laptop.yaml")
PAIR = """
hosts: {type: dgx-a100, count: 2}
network: {technology: infiniband, switch: qm8700, topology: {kind: fat-tree}}
"""
FLOWS = "Nodes 4\nConnections 2\n0->1 id 1 start 0 size 2000000\n2->3 id 2 start 5 size 4096\n"

COMMANDS = {
    "traffic": ["traffic", "flows.cm", "--cluster", "pair.yaml"],
    "perftest bandwidth": [
        "perftest",
        "ib_write_bw",
        "pair.yaml",
        "--from",
        "host-0",
        "--to",
        "host-1",
        "-n",
        "50",
    ],
    "perftest latency": ["perftest", "ib_read_lat", "pair.yaml", "--from", "host-0", "--to", "host-1", "-n", "20"],
    "nccl-tests": ["nccl-tests", "all_reduce_perf", "--cluster", "pair.yaml", "-b", "8", "-e", "1M", "-f", "8"],
    "sm": ["sm", "pair.yaml", "--do", "cut leaf-0/1"],
    "routes": ["routes", "check", "pair.yaml", "--engine", "minhop"],
    "routes diff": ["routes", "diff", "pair.yaml", "minhop", "updn"],
    "doctor": ["doctor", "evidence"],
    "pcap": ["pcap", "read", "seen.pcapng"],
    "configure": ["configure", "ethernet.yaml", "--for", "sonic", "--for", "host", "--out", "made"],
    "lint": ["lint", "evidence"],
    "topology show": ["topology", "show", "pair.yaml"],
    "topology path": ["topology", "path", "pair.yaml", "host-0/gpu0", "host-1/gpu0"],
    "topology export": ["topology", "export", "pair.yaml", "--out", "all.yaml"],
    "ibstat": ["ibstat", "pair.yaml"],
    "validate jitter": ["validate", "jitter", "--samples", "20", "--match", "H200"],
    "up": ["up", "pair.yaml"],
}


class Watched(Progress):
    """Remembers what every stage's share was when it began and when the next one did."""

    shares: list[float]

    def __enter__(self) -> Watched:
        self._last: Measure | None = None
        return self

    def __exit__(self, *_error: object) -> None:
        self.read()

    def stage(self, name: str, done: Measure | None = None, /) -> None:
        self.read()
        self._last = done
        self.read()

    def read(self) -> None:
        if self._last is not None:
            self.shares.append(float(self._last() if callable(self._last) else self._last))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.second
def test_a_command_says_how_far_it_is(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Watched, "shares", [], raising=False)
    monkeypatch.setattr("fabrictwin.base.progress.Progress", Watched)
    Path("pair.yaml").write_text(PAIR)
    Path("flows.cm").write_text(FLOWS)
    Path("ethernet.yaml").write_text(PAIR.replace("infiniband", "ethernet").replace("qm8700", "spectrum-4"))
    Path("evidence").mkdir()
    for name_of_file in ("a.conf", "b.conf", "c.conf"):
        Path("evidence", name_of_file).write_text("NCCL_IB_HCA=mlx5_0\n" * 100)
    Path("seen.pcapng").write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
    monkeypatch.setattr("fabrictwin.subnet.serve.sockets.Server.run", lambda self, until: None)
    assert main(COMMANDS[name]) in (0, 1)
    shares = Watched.shares
    assert len(shares) > 1, "nobody knew how far it was"
    assert min(shares) < 0.5 < max(shares) or name == "traffic", shares
    assert all(0 <= share <= 1 for share in shares)


def test_a_first_sweep_sends_as_many_datagrams_as_were_counted_on(tmp_path):
    from fabrictwin.subnet.operation.cluster_endpoint import open_endpoint
    from fabrictwin.subnet.operation.scenario import Scenario, first_sweep_datagrams

    path = tmp_path / "pair.yaml"
    path.write_text(PAIR)
    scenario = Scenario(open_endpoint(path))
    plane = scenario.fabric.planes[0]
    counted = first_sweep_datagrams(scenario.endpoint.state, plane.number)
    assert scenario.progress == 0
    scenario.start()
    assert plane.hosted.transport.statistics.requests == pytest.approx(counted, rel=0.02)
    assert scenario.progress > 0.95
