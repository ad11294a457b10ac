"""The two hosts of a test: which adapter, by which address, with memory where, and how fast its processor is."""

from __future__ import annotations

import numpy as np

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.tables import adapter_ipv4
from fabrictwin.tools.perftest.perftest_options import PerftestOptions
from fabrictwin.twin.twin import Twin

SUBNET_PREFIX = bytes.fromhex("fe80000000000000")


@record
class End:
    """One host of a test."""

    host: str
    device: str
    adapter: int
    lid: int
    gid: bytes | None
    gid_index: int
    memory: int | None


def find_end(twin: Twin, host: str, options: PerftestOptions, key: str) -> End:
    """A host and its adapter. Raises ConfigError."""
    fabric = twin.fabric
    name, _, device = host.partition("/")
    if name not in fabric.host_names:
        hint = did_you_mean(name, fabric.host_names)
        raise ConfigError(f"got {name!r}, expected a host such as {fabric.host_names[0]!r}{hint}", key=key)
    names = {
        fabric.node_name(int(node)).partition("/")[2]: i
        for i, node in enumerate(fabric.nic_node)
        if fabric.host_names[int(fabric.node_host[node])] == name and fabric.nic_port[i] != NONE
    }
    device = device or options.device or next(iter(names), "")
    if device not in names:
        hint = did_you_mean(device, names)
        raise ConfigError(f"got {device!r}, expected an adapter of {name}: {', '.join(names)}{hint}", key="-d")
    adapter = names[device]
    node = int(fabric.nic_node[adapter])
    guid = int(fabric.node_guid[node]).to_bytes(8, "big")
    if fabric.technology == "ethernet":
        mac = guid[:3] + guid[5:]
        local = SUBNET_PREFIX + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
        address = int(adapter_ipv4(np.array([adapter], np.int32))[0]).to_bytes(4, "big")
        gids = [local, local, bytes(10) + b"\xff\xff" + address, bytes(10) + b"\xff\xff" + address]
        index = 3 if options.gid_index is None else options.gid_index
    else:
        gids, index = [SUBNET_PREFIX + guid], options.gid_index or 0
    if not 0 <= index < len(gids):
        raise ConfigError(f"got GID index {index}, expected 0 to {len(gids) - 1}", key="-x")
    memory = None
    if options.gpu is not None:
        gpus = [int(g) for g in fabric.gpu_node if fabric.host_names[int(fabric.node_host[g])] == name]
        if not 0 <= options.gpu < len(gpus):
            raise ConfigError(f"got GPU {options.gpu}, expected one of {name}'s {len(gpus)}", key="--use_cuda")
        memory = gpus[options.gpu]
    gid = gids[index] if fabric.technology == "ethernet" or options.gid_index is not None else None
    return End(name, device, adapter, int(twin.routes.lid[node]), gid, index, memory)
