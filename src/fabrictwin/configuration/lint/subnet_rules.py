"""Rules about a subnet manager's files and Slurm's topology."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

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
OPTIONS = (  # that `opensm -c` of 3.3.23 writes, qos_ for each kind of port
    "accum_log_file", "allow_both_pkeys", "avoid_throttled_links", "babbling_port_policy",
    "cc_ca_cong_setting_ccti_increase", "cc_ca_cong_setting_ccti_min", "cc_ca_cong_setting_ccti_timer",
    "cc_ca_cong_setting_control_map", "cc_ca_cong_setting_port_control", "cc_ca_cong_setting_trigger_threshold",
    "cc_cct", "cc_key", "cc_max_outstanding_mads", "cc_sw_cong_setting_control_map",
    "cc_sw_cong_setting_credit_mask", "cc_sw_cong_setting_credit_starvation_return_delay",
    "cc_sw_cong_setting_credit_starvation_threshold", "cc_sw_cong_setting_marking_rate",
    "cc_sw_cong_setting_packet_size", "cc_sw_cong_setting_threshold", "cc_sw_cong_setting_victim_mask",
    "cn_guid_file", "congestion_control", "connect_roots", "console", "console_port",
    "consolidate_ipv6_snm_req", "daemon", "disable_multicast", "do_mesh_analysis", "drop_event_subscriptions",
    "dump_files_dir", "enable_quirks", "event_db_dump_file", "event_plugin_name", "event_plugin_options",
    "exit_on_fatal", "fdr10", "force_heavy_sweep", "force_link_speed", "force_link_speed_ext",
    "force_link_width", "force_log_flush", "fsync_high_avail_files", "guid", "guid_routing_order_file",
    "guid_routing_order_no_scatter", "head_of_queue_lifetime", "honor_guid2lid_file", "hop_weights_file",
    "ids_guid_file", "ignore_other_sm", "io_guid_file", "ipoib_mcgroup_creation_validation",
    "keep_pkey_indexes", "lash_start_vl", "leaf_head_of_queue_lifetime", "leaf_vl_stall_count", "lfts_file",
    "lid_matrix_dump_file", "lmc", "lmc_esp0", "local_phy_errors_threshold", "log_file", "log_flags",
    "log_max_size", "log_prefix", "long_transaction_timeout", "m_key", "m_key_lease_period", "m_key_lookup",
    "m_key_protection_level", "max_msg_fifo_timeout", "max_op_vls", "max_reverse_hops", "max_smps_timeout",
    "max_wire_smps", "max_wire_smps2", "mcgroup_join_validation", "no_clients_rereg",
    "no_partition_enforcement", "node_name_map_name", "nue_include_switches", "nue_max_num_vls",
    "overrun_errors_threshold", "packet_life_time", "part_enforce", "partition_config_file",
    "per_module_logging_file", "perfmgr", "perfmgr_ignore_cas", "perfmgr_log_errors",
    "perfmgr_max_outstanding_queries", "perfmgr_query_cpi", "perfmgr_redir", "perfmgr_rm_nodes",
    "perfmgr_sweep_time_s", "perfmgr_xmit_wait_log", "perfmgr_xmit_wait_threshold", "polling_retry_number",
    "port_prof_ignore_file", "port_profile_switch_nodes", "port_search_ordering_file", "port_shifting",
    "prefix_routes_file", "qos", "qos_high_limit", "qos_max_vls", "qos_policy_file", "qos_sl2vl",
    "qos_vlarb_high", "qos_vlarb_low", "quasi_ftree_indexing", "reassign_lids", "root_guid_file",
    "routing_engine", "sa_db_dump", "sa_db_file", "sa_key", "scatter_ports", "single_thread",
    "sm_assigned_guid", "sm_inactive", "sm_key", "sm_priority", "sm_sl", "sminfo_polling_timeout",
    "subnet_prefix", "subnet_timeout", "suppress_sl2vl_mad_status_errors", "sweep_interval", "sweep_on_trap",
    "torus_config", "transaction_retries", "transaction_timeout", "use_mfttop", "use_optimized_slvl",
    "use_original_extended_sa_rates_only", "use_ucast_cache", "vl_stall_count",
)
# fmt: on
ALIKE = 0.9  # of a name that is misspelt


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
            if value is None and not (options[name] == "-1" and name == "qos_high_limit"):  # OpenSM's own
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
        # lanes can be told apart for adapters, routers and switches
        bare = re.sub(r"^qos_(?:ca|rtr|sw0|swe|sw)_", "qos_", name)
        if bare not in OPTIONS and get_close_matches(bare, OPTIONS, 1, ALIKE):
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
    if qos == "FALSE" and any(name in options for name in ("qos_sl2vl", "qos_vlarb_high")):
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
    # lines of one key are one partition: each adds members
    together: dict[int, PartitionLine] = {}
    for one in subnet.partitions:
        known = together.get(one.pkey)
        both = one if known is None else replace(known, members={**known.members, **one.members})
        together[one.pkey] = both
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
        members = together[one.pkey].members
        if not members:
            yield _found(subnet, "partition-empty", one.name, "no members", "some", "nobody may use it", warn=True)
        elif all(how == "limited" for how in members.values()):
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
