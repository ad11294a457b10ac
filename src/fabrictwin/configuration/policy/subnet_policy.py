"""What an InfiniBand subnet's manager is to be told."""

from __future__ import annotations

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.guids import node_guids, port_guids
from fabrictwin.configuration.model.subnet import PartitionLine, QosLevel, QosPolicy, Subnet

DEFAULT_PKEY, COMPUTE_PKEY = 0x7FFF, 0x0001
MTU_4096 = 5
COMPUTE_SL, STORAGE_SL = 0, 1
SUBNET_PREFIX = "0xfe80000000000000"
FILES = {
    "partition_config_file": "partitions.conf",
    "root_guid_file": "root_guids.conf",
    "cn_guid_file": "cn_guids.conf",
    "io_guid_file": "io_guids.conf",
    "qos_policy_file": "qos-policy.conf",
}


def subnet(blueprint: Blueprint, *, engine: str, lmc: int) -> Subnet:
    """Return the manager's configuration; `engine` as the spec routes, "default" for the one that fits."""
    guids, ports = node_guids(blueprint), port_guids(blueprint)  # roots are nodes, members are ports
    switches = len(blueprint.switches)
    top = max((site.tier for site in blueprint.switches), default=-1)
    roots = [guids[s] for s, site in enumerate(blueprint.switches) if site.tier == top and top > 1]
    adapters = blueprint.adapters
    if not adapters:
        raise ConfigError("got a subnet without adapters, expected hosts", key="cluster.hosts")
    compute = [ports[switches + n] for n, (h, _) in enumerate(adapters) if blueprint.hosts[h].type]
    other = [ports[switches + n] for n, (h, _) in enumerate(adapters) if not blueprint.hosts[h].type]
    if engine in ("default", "auto"):
        engine = "updn" if roots else "minhop"
    options = _options(engine, lmc, bool(roots), bool(other))
    members = {f"{guid:#018x}": "full" for guid in compute}
    return Subnet(
        options=options,
        partitions=(
            PartitionLine(
                "Default", DEFAULT_PKEY, ipoib=True, mtu=MTU_4096, members={"ALL": "full", "SELF": "full"}
            ),
            PartitionLine("compute", COMPUTE_PKEY, ipoib=True, mtu=MTU_4096, defmember="full", members=members),
        ),
        roots=tuple(roots),
        compute_nodes=tuple(compute) if roots else (),
        io_nodes=tuple(other) if roots else (),
        qos=QosPolicy(
            levels=(QosLevel("DEFAULT", COMPUTE_SL), QosLevel("STORAGE", STORAGE_SL)),
            groups={"storage": ", ".join(f"{guid:#018x}" for guid in other)} if other else {},
            rules=(("source storage", "STORAGE"), ("destination storage", "STORAGE")) if other else (),
        ),
    )


def _options(engine: str, lmc: int, roots: bool, others: bool) -> dict[str, str]:
    options = {
        "subnet_prefix": SUBNET_PREFIX,
        "sm_priority": "14",
        "routing_engine": engine,
        "lmc": str(lmc),
        "partition_config_file": FILES["partition_config_file"],
        "qos": "TRUE",
        "qos_policy_file": FILES["qos_policy_file"],
        "qos_max_vls": "8",
        "qos_high_limit": "4",
        "qos_vlarb_high": "0:192,1:64",
        "qos_vlarb_low": "0:64,1:64,2:4,3:4,4:4,5:4,6:4,7:4",
        "qos_sl2vl": "0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7",
        "subnet_timeout": "18",
        "head_of_queue_lifetime": "18",
        "leaf_head_of_queue_lifetime": "16",
        "sweep_interval": "10",
    }
    if roots:
        options |= {"root_guid_file": FILES["root_guid_file"], "cn_guid_file": FILES["cn_guid_file"]}
        if others:
            options["io_guid_file"] = FILES["io_guid_file"]
    return options
