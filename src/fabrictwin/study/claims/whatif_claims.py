"""Claims about hardware to come, tried by changing figures of a fabric that is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.units import format_rate, format_time
from fabrictwin.fabric.fabric import Fabric, LinkKind, NodeKind
from fabrictwin.study.claims.claim import Claim, Judgement
from fabrictwin.study.claims.claim_settings import spec, twin
from fabrictwin.study.claims.link_claims import send_ps
from fabrictwin.study.compare.packet_measurements import small_message_ps
from fabrictwin.twin.twin import Twin

SWITCH_PS = 49_000
FASTER = 4  # times 400 Gb/s
LARGE = 64 << 20


def _changed(*, switch_ps: int | None = None, network: int = 1, inside: int = 1) -> Twin:
    """Two DGX H100 on one NDR switch with another latency of it, or with links so many times as fast."""
    where = twin(spec())
    fabric: Fabric = where.fabric
    latency = fabric.node_latency_ps.copy()
    if switch_ps is not None:
        latency[fabric.node_kind == NodeKind.SWITCH] = switch_ps
    times = np.ones(fabric.ports, np.int64)
    times[fabric.port_kind == LinkKind.INFINIBAND] = network
    times[fabric.port_kind == LinkKind.PCIE] = inside
    where.fabric = replace(
        fabric,
        node_latency_ps=latency,
        port_rate_bps=fabric.port_rate_bps * times,
        port_payload_bps=fabric.port_payload_bps * times,
    )
    return where


def next_links() -> Claim:
    ndr = catalog.switch("qm9700").latency.value
    now, fast = small_message_ps(_changed()), small_message_ps(_changed(switch_ps=SWITCH_PS))
    large = {
        "400 Gb/s": send_ps(_changed(), LARGE),
        "1.6 Tb/s": send_ps(_changed(network=FASTER), LARGE),
        f"1.6 Tb/s, PCIe {FASTER} times as fast": send_ps(_changed(network=FASTER, inside=FASTER), LARGE),
    }
    less, alone, both = 1 - fast / now, large["400 Gb/s"] / large["1.6 Tb/s"], 0.0
    both = large["400 Gb/s"] / list(large.values())[-1]
    return Claim(
        key="next",
        statement="Switches below 50 ns and links of 1.6 Tb/s are what comes next, and make networks as much faster.",
        experiment="What if: two DGX H100 through one NDR switch, its latency set to "
        f"{format_time(SWITCH_PS)} in place of {format_time(ndr)}; the network's links {FASTER} times as fast; those of "
        f"PCIe too. An empty message, and {LARGE >> 20} MiB packet by packet. No such hardware is in the catalog.",
        figures=(
            (f"empty message, switch of {format_time(ndr)}", format_time(now)),
            (f"empty message, switch of {format_time(SWITCH_PS)}", f"{format_time(fast)}, {less:.1%} less"),
            *(
                (
                    f"{LARGE >> 20} MiB, links of {name}",
                    f"{format_time(ps)}, {format_rate(round(8e12 * LARGE / ps))}",
                )
                for name, ps in large.items()
            ),
        ),
        judgement=Judgement.CONDITIONS if less < 0.2 and alone < both else Judgement.HOLDS,
        why=f"A switch is a small part of the way: {less:.1%} less for each that is passed. Links {FASTER} times as fast carry a "
        f"long message {alone:.1f} times as fast where PCIe stays as it is, {both:.1f} times where it grows with them: hosts have "
        "to follow.",
    )
