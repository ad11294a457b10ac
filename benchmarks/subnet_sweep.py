"""A whole sweep over management datagrams, discovery to active, in CPU seconds of one process.

Fabrics of radix 36 with 18 hosts a leaf and full bisection: 648, 1,944, 5,832 and 11,664 hosts, and a discovered
one where its ibnetdiscover file is given. The manager programs tables, SL to VL maps (one datagram a switch), VL
arbitration, partitions and port states; what its datagrams take on the twin's clock is printed beside.

    python benchmarks/subnet_sweep.py [--engine NAME] [--hosts N ...] [--discovered FILE]
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from fabrictwin.cluster.blueprint import Blueprint, Cables, HostSite, SwitchSite
from fabrictwin.cluster.generators.topologies import wire
from fabrictwin.cluster.importers.bindings import import_ibnetdiscover
from fabrictwin.cluster.spec.cluster_section import Topology
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.operation.manager_host import HostedManager, first_adapter
from fabrictwin.subnet.serve.endpoint import Endpoint
from fabrictwin.subnet.wire.link_encodings import Speed, rate_of

HOSTS = (648, 1_944, 5_832, 11_664)
RADIX = 36


def fat_tree(hosts: int) -> Blueprint:
    """Hosts of one adapter in a fat-tree of switches with 36 ports."""
    tiers = 2 if hosts <= RADIX * RADIX // 2 else 3
    wiring = wire(Topology(kind="fat-tree", tiers=tiers), nics=np.ones(hosts, np.int64), radix=RADIX)
    switches, trunks = len(wiring.names), len(wiring.lower)
    return Blueprint(
        technology="infiniband",
        hosts=tuple(HostSite(f"host-{i}", "", ("mlx5_0",)) for i in range(hosts)),
        switches=tuple(
            SwitchSite(name, "qm8700", RADIX, int(tier))
            for name, tier in zip(wiring.names, wiring.tier, strict=True)
        ),
        cables=Cables(
            a_node=np.concatenate([wiring.adapter_switch, wiring.lower]),
            a_port=np.concatenate([wiring.adapter_port, wiring.lower_port]),
            b_node=np.concatenate([switches + np.arange(hosts), wiring.upper]),
            b_port=np.concatenate([np.ones(hosts, np.int64), wiring.upper_port]),
            rate_bps=np.full(hosts + trunks, rate_of(4, Speed.HDR)),
            length_mm=np.full(hosts + trunks, 3_000),
        ),
    )


def sweep(name: str, blueprint: Blueprint, engine: str) -> None:
    start = time.process_time()
    state = SubnetState(compile_fabric(blueprint))
    made = time.process_time()
    endpoint = Endpoint(Network(state))
    hosted = HostedManager(endpoint, first_adapter(endpoint), settings=Settings(engine=engine))
    report = hosted.manager.sweep()
    swept = time.process_time()
    hosted.manager.light_sweep()
    light = time.process_time()
    sent = hosted.transport.statistics
    twin_s = (report.ended_ps - report.started_ps) / 1e12
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{name:>9} {report.nodes:>7,} {report.engine:>7} {sent.requests:>10,} {made - start:>8.2f} "
        f"{swept - made:>8.2f} {light - swept:>8.3f} {1e6 * (swept - made) / sent.requests:>8.1f} {twin_s:>8.3f} "
        f"{memory_gb:>6.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--hosts", type=int, nargs="*", default=HOSTS)
    parser.add_argument("--discovered", type=Path)
    asked = parser.parse_args()
    print(
        f"{'hosts':>9} {'nodes':>7} {'engine':>7} {'datagrams':>10} {'made s':>8} {'sweep s':>8} {'light s':>8} "
        f"{'us each':>8} {'twin s':>8} {'GB':>6}"
    )
    sweep("(warm up)", fat_tree(72), asked.engine)  # kernels are compiled or loaded here
    for hosts in asked.hosts:
        sweep(f"{hosts:,}", fat_tree(hosts), asked.engine)
    if asked.discovered is not None:
        sweep(asked.discovered.stem[:9], import_ibnetdiscover(asked.discovered), asked.engine)


if __name__ == "__main__":
    main()
