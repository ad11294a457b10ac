"""`exec --netns`: ping between namespaces over the twin, and what its capture holds; what is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.clusters import blueprint

from fabrictwin.base.errors import ConfigError
from fabrictwin.live.native_libraries import COMPILERS

_SPEC = """schema: 1
cluster:
  hosts: {{type: pcie-box, count: 2}}
  network: {{technology: {technology}, switch: {switch}, topology: {{kind: single-switch}}{more}}}
"""
MISSING = [name for name in ("ping", "tshark") if shutil.which(name) is None]


def _spec(folder: Path, technology: str = "infiniband", more: str = "") -> Path:
    path = folder / "cluster.yaml"
    switch = "qm8700" if technology == "infiniband" else "spectrum-4"
    path.write_text(_SPEC.format(technology=technology, switch=switch, more=more))
    return path


def _exec(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "fabrictwin"), "exec", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("technology", "options", "said"),
    [
        ("ethernet", ["--netns"], "--netns: host-0 has no port on InfiniBand"),
        ("infiniband", ["--netns", "--clock", "virtual"], "--clock: got 'virtual' with --netns"),
    ],
)
@pytest.mark.skipif(not any(shutil.which(name) for name in COMPILERS), reason="needs a C compiler")
def test_where_there_can_be_no_interface(tmp_path, technology, options, said):
    spec = _spec(tmp_path, technology)
    done = _exec(tmp_path, "--cluster", str(spec), *options, "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr


def test_ipoib_on_ethernet_is_refused_in_a_spec():
    with pytest.raises(ConfigError, match="got ipoib on Ethernet"):
        blueprint(
            2, "pcie-box", technology="ethernet", switch="spectrum-4", topology={"kind": "single-switch"},
            ipoib="connected",
        )  # fmt: skip


@pytest.mark.second
@pytest.mark.skipif(
    bool(MISSING) or os.geteuid() != 0 or not Path("/dev/net/tun").exists(),
    reason="needs root, /dev/net/tun, ping and tshark (apt-get install iputils-ping tshark)",
)
@pytest.mark.parametrize("mode", ["datagram", "connected"])
def test_ping_crosses_the_twin_and_its_capture_says_so(tmp_path, mode):
    spec = _spec(tmp_path, more=f", ipoib: {mode}")
    pair = tmp_path / "pair"
    pair.write_text(
        "host-0: sleep 5\nhost-1: sh -c 'ip link show ib0; sleep 1; ping -c 3 -i 0.2 -M do -s 4060 10.0.0.1'\n"
    )
    done = _exec(tmp_path, "--cluster", str(spec), "--hosts", str(pair), "--netns", "--pcap", "ping.pcapng")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 packets transmitted, 3 received, 0% packet loss" in done.stdout
    assert f"mtu {65520 if mode == 'connected' else 4092}" in done.stdout
    assert re.search(rf"host-1/ib0 \({mode}, .*: 3 packets, 12,264 bytes sent; 3 packets", done.stderr)
    shown = subprocess.run(
        ["tshark", "-r", "ping.pcapng"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert shown.count("Who has 10.0.0.1?") == 2  # once at either end
    assert "10.0.0.1 is at" in shown
    if mode == "datagram":
        assert shown.count("Echo (ping) request") == 6
