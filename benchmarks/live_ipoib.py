"""`ping` and `iperf3` over ib0 of two hosts by the machine's clock, beside what the fabric makes of their bytes.

    python benchmarks/live_ipoib.py [--seconds 5] [--capture]

Both modes of IPoIB over links of 50 to 500 Mb/s, slow enough for a machine to follow. A row for each: the round
trip that the bytes take on the wire and what `ping -A` prints (one probe follows the other; mean of all but the
first, which asks for the address and connects), the rate that packets leave to TCP and what `iperf3` receives.
Takes root, /dev/net/tun, ping, iperf3, and a machine with nothing else to do. Exit code 1 where anything is 5 % or
more off.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "fabrictwin"
SPEC = """schema: 1
cluster:
  hosts: {{type: pcie-box, count: 2}}
  network:
    technology: infiniband
    switch: qm8700
    topology: {{kind: single-switch}}
    ipoib: {mode}
    link_rate: {rate} Mb/s
"""
CASES = ((50, 32000), (100, 65000), (200, 65000), (500, 65000))  # Mb/s, bytes of an echo
MOST_OFF = 0.05
ENCAPSULATION = 4
HEADERS = {"datagram": 8 + 12 + 8 + 4 + 2, "connected": 8 + 12 + 4 + 2}  # LRH, BTH, DETH, ICRC, VCRC
MTU = {"datagram": 4092, "connected": 65520}
LINK_MTU = 4096


def wire_bytes(ip_packet: int, mode: str) -> int:
    """Return what an IP packet takes of a link."""
    message = ip_packet + ENCAPSULATION
    return message + -(-message // LINK_MTU) * HEADERS[mode]


def round_trip_ms(echo: int, mode: str, rate_mbps: int) -> float:
    """Return the time that an echo and its answer take of their links, fragments behind each other."""
    most = (MTU[mode] - 20) // 8 * 8
    left, total = echo + 8, 0
    while left > 0:
        total += wire_bytes(20 + min(left, most), mode)
        left -= most
    return 2 * total * 8 / rate_mbps / 1e3


def tcp_mbps(mode: str, rate_mbps: int) -> float:
    """Return the rate that full segments with time stamps leave."""
    return rate_mbps * (MTU[mode] - 52) / wire_bytes(MTU[mode], mode)


def printed(mode: str, rate: int, echo: int, seconds: int, capture: bool) -> tuple[list[float], float, bool]:
    """Return the round trips (ms) of `ping`, the rate (Mb/s) of `iperf3`, and whether it was host-bound."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "cluster.yaml").write_text(SPEC.format(mode=mode, rate=rate))
        client = f"sleep 1; ping -A -c 101 -s {echo} 10.0.0.1; iperf3 -f k -t {seconds} -c 10.0.0.1"
        (folder / "pair").write_text(f'host-0: iperf3 -f k -s -1\nhost-1: sh -c "{client}"\n')
        command = [str(PROGRAM), "exec", "--cluster", "cluster.yaml", "--hosts", "pair", "--netns"]
        command += ["--pcap", "ib0.pcapng"] if capture else []
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True)
    times = [float(time) for time in re.findall(r"icmp_seq=(?!1 )\d+ .*time=([\d.]+) ms", done.stdout)]
    received = re.findall(r"([\d.]+) Kbits/sec +receiver", done.stdout)
    return times, float(received[0]) / 1e3, "host-bound" in done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--capture", action="store_true", help="write captures meanwhile")
    options = parser.parse_args()
    wrong = 0
    print("| mode | link | round trip, wire | `ping` | off | TCP, wire | `iperf3` | off | summary |")
    print("|---|---|---|---|---|---|---|---|---|")
    for mode in MTU:
        for rate, echo in CASES:
            times, received, bound = printed(mode, rate, echo, options.seconds, options.capture)
            expected, mean = round_trip_ms(echo, mode, rate), sum(times) / len(times)
            best = tcp_mbps(mode, rate)
            late, short = mean / expected - 1, received / best - 1
            wrong += abs(late) >= MOST_OFF or abs(short) >= MOST_OFF
            print(
                f"| {mode} | {rate} Mb/s | {expected:.2f} ms | {mean:.2f} ms | {late:+.1%} | {best:.1f} Mb/s"
                f" | {received:.1f} Mb/s | {short:+.1%} | {'host-bound' if bound else ''} |",
                flush=True,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
