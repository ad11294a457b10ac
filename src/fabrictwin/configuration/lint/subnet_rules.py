"""Rules about a subnet manager's files and Slurm's topology."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin.base.errors import did_you_mean
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.configuration.lint.findings import Finding
from fabrictwin.configuration.model.cluster import Configuration, Slurm
from fabrictwin.configuration.model.subnet import PartitionLine, Subnet

ENGINES = ("minhop", "updn", "dnup", "file", "ftree", "lash", "dor", "torus-2QoS", "dfsssp", "sssp", "nue")
MTU_4096 = 5
_LIMITS = {
    "lmc": 7,
    "sm_priority": 15,
    "subnet_timeout": 31,
    "head_of_queue_lifetime": 20,
    "leaf_head_of_queue_lifetime": 20,
    "qos_max_vls": 15,
    "qos_high_limit": 255,
}
NEVER = 20  # a lifetime of 20 is without end
SLOW_RATES = {2: "2.5", 3: "10", 5: "5", 6: "20", 11: "14"}  # codes of a group's rate, Gb/s (InfiniBand 15.2.5.16)
# fmt: off
OPTIONS = (  # of opensm(8), those that people set
    *_LIMITS,
    "subnet_prefix", "guid", "m_key", "routing_engine", "root_guid_file", "cn_guid_file", "io_guid_file", "qos",
    "partition_config_file", "qos_policy_file", "qos_vlarb_high", "qos_vlarb_low", "qos_sl2vl",
    "sweep_interval", "log_file", "log_flags", "log_max_size", "force_log_flush", "dump_files_dir",
    "sweep_on_trap", "max_op_vls", "connect_roots", "use_ucast_cache", "packet_life_time", "vl_stall_count",
    "leaf_vl_stall_count", "babbling_port_policy", "transaction_timeout", "transaction_retries",
    "max_wire_smps", "reassign_lids", "honor_guid2lid_file", "daemon", "sminfo_polling_timeout",
    "polling_retry_number", "console", "console_port", "port_shifting", "scatter_ports", "ids_guid_file",
    "guid_routing_order_file", "torus_config", "no_partition_enforcement", "part_enforce", "nue_max_num_vls",
    "allow_both_pkeys", "sa_key", "sm_key", "no_multicast_option", "disable_multicast",
    "local_phy_errors_threshold", "overrun_errors_threshold", "hop_weights_file", "port_search_ordering_file",
    "lid_matrix_dump_file", "lfts_file", "avoid_throttled_links", "default_mcg_mtu", "default_mcg_rate",
    "perfmgr", "event_plugin_name", "quasi_ftree_indexing",
)
# fmt: on


def manager(configuration: Configuration) -> Iterator[Finding]:
    """opensm.conf says what OpenSM takes."""
    subnet = configuration.subnet
    if subnet is None or not subnet.options:
        return
    options = subnet.options
    for engine in options.get("routing_engine", "").replace(" ", "").split(","):
        if engine and engine not in (*ENGINES, "no_fallback", "(null)"):
            yield _found(
                subnet,
                "engine-unknown",
                "routing_engine",
                engine[:40],
                f"one of {', '.join(ENGINES)}{did_you_mean(engine, ENGINES)}",
                "OpenSM falls back to minhop",
            )
        if engine in ("updn", "dnup", "ftree") and not subnet.roots and "root_guid_file" not in options:
            yield _found(
                subnet,
                "roots-missing",
                "routing_engine",
                f"{engine} without root_guid_file",
                "the switches at the top",
                "roots are guessed, and an uneven tree is refused",
                warn=True,
            )
    for name, most in _LIMITS.items():
        if name in options:
            value = whole_or_none(options[name], most=most, base=0)
            if value is None:
                yield _found(
                    subnet, "option-range", name, options[name][:40], f"0 to {most}", "OpenSM ignores the option"
                )
            elif value == NEVER and name.endswith("lifetime"):
                yield _found(
                    subnet,
                    "lifetime-endless",
                    name,
                    "20, without end",
                    "at most 19",
                    "a stuck host stops the fabric behind it",
                    warn=True,
                )
    for name in options:
        if name not in OPTIONS and did_you_mean(name, OPTIONS):
            yield _found(
                subnet,
                "option-unknown",
                name[:40],
                "an option that OpenSM has not",
                f"a name of its own{did_you_mean(name, OPTIONS)}",
                "OpenSM ignores the line, and goes on with its default",
                warn=True,
            )
    qos = options.get("qos", "").upper()
    if qos == "FALSE" and any(name in options for name in ("qos_policy_file", "qos_sl2vl", "qos_vlarb_high")):
        yield _found(
            subnet,
            "qos-off",
            "qos",
            "FALSE, with lanes and a policy",
            "TRUE",
            "neither is programmed: all traffic is in one lane",
            warn=True,
        )
    yield from _lanes(subnet)


def _found(
    subnet: Subnet, rule: str, where: str, got: str, expected: str, effect: str, *, warn: bool = False
) -> Finding:
    return Finding(rule, "warning" if warn else "error", where, got, expected, effect, subnet.file)


def _lanes(subnet: Subnet) -> Iterator[Finding]:
    options = subnet.options
    lanes = whole_or_none(options.get("qos_max_vls", "15"), least=1, most=15) or 15
    text = options.get("qos_sl2vl")
    if text is not None:
        values = [whole_or_none(part.strip(), most=15) for part in text.split(",")]
        if len(values) != 16 or None in values:
            yield _found(subnet, "sl2vl", "qos_sl2vl", text[:60], "16 lanes", "OpenSM ignores the map")
        elif any(value != 15 and value is not None and value >= lanes for value in values):
            yield _found(
                subnet,
                "sl2vl-lanes",
                "qos_sl2vl",
                text[:60],
                f"lanes below {lanes}, or 15 to drop",
                "packets of those service levels are discarded",
            )
        elif 15 in values:
            yield _found(
                subnet,
                "sl2vl-drop",
                "qos_sl2vl",
                text[:60],
                "a lane for each service level",
                "packets of service levels with lane 15 are discarded",
                warn=True,
            )
    served: set[int] = set()
    for name in ("qos_vlarb_high", "qos_vlarb_low"):
        for part in options.get(name, "").split(","):
            lane, colon, weight = (piece.strip() for piece in part.partition(":"))
            if not part.strip():
                continue
            vl, share = whole_or_none(lane, most=14), whole_or_none(weight, most=255)
            if not colon or vl is None or share is None:
                yield _found(
                    subnet, "vlarb", name, part[:40], "lane:weight, up to 14:255", "OpenSM ignores the table"
                )
            elif share:
                served.add(vl)
    mapped = {whole_or_none(part.strip(), most=14) for part in (text or "").split(",")} - {None}
    if served and mapped - served:
        yield _found(
            subnet,
            "vlarb-starved",
            "qos_vlarb_low",
            f"lanes {sorted(served)}",
            f"also {sorted(v for v in mapped - served if v is not None)}, which sl2vl leads to",
            "what travels in those lanes waits for ever",
        )


def partitions(configuration: Configuration) -> Iterator[Finding]:
    """Partitions let everybody reach the manager, and their members each other."""
    subnet = configuration.subnet
    if subnet is None or not subnet.partitions:
        return
    default = [one for one in subnet.partitions if one.pkey == 0x7FFF]
    if default and not any({"ALL", "SELF", "ALL_CAS"} & set(one.members) for one in default):
        yield _found(
            subnet,
            "partition-manager",
            default[0].name,
            "neither ALL nor SELF in the default partition",
            "SELF=full",
            "the manager does not reach the subnet's ports",
        )
    names: dict[int, PartitionLine] = {}
    for one in subnet.partitions:
        if one.pkey in names and names[one.pkey].name != one.name:
            yield _found(
                subnet,
                "partition-twice",
                one.name,
                f"P_Key {one.pkey:#x}, which {names[one.pkey].name} has",
                "a P_Key of its own",
                "the two are one partition",
                warn=True,
            )
        names.setdefault(one.pkey, one)
        if not one.members:
            yield _found(subnet, "partition-empty", one.name, "no members", "some", "nobody may use it", warn=True)
        elif all(how == "limited" for how in one.members.values()):
            yield _found(
                subnet,
                "partition-limited",
                one.name,
                "only limited members",
                "full members",
                "limited members do not reach each other",
            )
        if one.rate in SLOW_RATES:
            yield _found(
                subnet,
                "partition-rate",
                one.name,
                f"rate={one.rate} ({SLOW_RATES[one.rate]} Gb/s)",
                "no rate, or that of the slowest port",
                "IPoIB of the partition sends no faster",
                warn=True,
            )
        if one.ipoib and one.mtu is not None and one.mtu < MTU_4096:
            yield _found(
                subnet,
                "partition-mtu",
                one.name,
                f"mtu={one.mtu}",
                f"mtu={MTU_4096} (4096 bytes)",
                "IPoIB of the partition has a smaller MTU than the ports",
                warn=True,
            )


def policy(configuration: Configuration) -> Iterator[Finding]:
    """Rules of a QoS policy name levels and groups that are there."""
    subnet = configuration.subnet
    if subnet is None:
        return
    levels = subnet.qos.levels
    for matched, level in subnet.qos.rules:
        if level not in levels:
            yield _found(
                subnet,
                "qos-level-unknown",
                f"rule {matched[:40]}",
                f"level {level[:40]}",
                f"one of {', '.join(sorted(levels))}",
                "the rule matches nothing",
            )
        kind, _, group = matched.partition(" ")
        if kind in ("source", "destination") and subnet.qos.groups and group not in subnet.qos.groups:
            yield _found(
                subnet,
                "qos-group-unknown",
                f"rule {matched[:40]}",
                f"group {group[:40]}",
                f"one of {', '.join(subnet.qos.groups)}",
                "the rule matches nothing",
            )
    if levels and "DEFAULT" not in levels:
        yield _found(subnet, "qos-default", "qos-levels", "no level DEFAULT", "one", "OpenSM refuses the policy")


def scheduler(configuration: Configuration) -> Iterator[Finding]:
    """Slurm's tree has each node once, and every switch that it names."""
    slurm = configuration.slurm
    if slurm is None:
        return
    names = {row.name for row in slurm.switches}
    owner: dict[str, str] = {}
    for row in slurm.switches:
        for child in row.switches:
            if child not in names:
                yield Finding(
                    "slurm-switch-unknown",
                    "error",
                    row.name,
                    f"switch {child[:60]}",
                    "a SwitchName",
                    "slurmctld ends: invalid child",
                    slurm.file,
                )
        for node in (*row.nodes, *row.switches):
            if node in owner:
                yield Finding(
                    "slurm-twice",
                    "error",
                    node[:60],
                    f"under {owner[node]} and {row.name}",
                    "one switch above each",
                    "slurmctld ends, or places jobs across the fabric",
                    slurm.file,
                )
            owner[node] = row.name
        if not row.nodes and not row.switches:
            yield Finding(
                "slurm-empty",
                "error",
                row.name,
                "neither nodes nor switches",
                "one of the two",
                "slurmctld ends: has no nodes or switches",
                slurm.file,
            )
    yield from _tree(slurm, names, owner)


def _tree(slurm: Slurm, names: set[str], owner: dict[str, str]) -> Iterator[Finding]:
    if slurm.switches and slurm.plugin and slurm.plugin != "topology/tree":
        yield Finding(
            "slurm-plugin",
            "error",
            "slurm.conf",
            f"TopologyPlugin={slurm.plugin[:40]}",
            "topology/tree",
            "topology.conf is not read: jobs are placed without regard to switches",
            slurm.file,
        )
    tops = sorted(name for name in names if name not in owner)
    below = {row.name: row.switches for row in slurm.switches}
    reached, waiting = set(tops), list(tops)
    while waiting:
        fresh = [child for child in below.get(waiting.pop(), ()) if child not in reached]
        reached |= set(fresh)
        waiting += fresh
    if names - reached:
        yield Finding(
            "slurm-loop",
            "error",
            ", ".join(sorted(names - reached))[:60],
            "switches that are above each other",
            "a tree",
            "slurmctld ends: the switches have no top",
            slurm.file,
        )
    if len(tops) > 1:
        yield Finding(
            "slurm-apart",
            "warning",
            "topology.conf",
            f"{len(tops)} switches at the top",
            "one that joins them",
            "jobs do not span them",
            slurm.file,
        )
    placed = {node for row in slurm.switches for node in row.nodes}
    missing = [node for row in slurm.gres for node in row.nodes if placed and node not in placed]
    if missing:
        yield Finding(
            "slurm-node-unplaced",
            "warning",
            missing[0][:60],
            "GPUs and no switch above",
            "every node in topology.conf",
            "the node is taken for farthest away",
            slurm.file,
        )
