"""Which format a file has, told from its content, and all files read into one configuration.

The host that a file is about stands in the file (a guard by host name), or is the folder that it lies in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text
from fabrictwin.configuration.model.cluster import Configuration
from fabrictwin.configuration.model.hosts import Host
from fabrictwin.configuration.model.switches import Switch
from fabrictwin.configuration.readers import host_files, host_script, k8s, nvue, opensm, slurm, sonic
from fabrictwin.configuration.readers.problems import Problem, Problems

MOST_FILES = 200_000
_COMPANION = ".reasons.json"
_HOST: dict[str, Callable[[str, str, str], tuple[Host, Problems]]] = {
    "netplan": host_files.read_netplan,
    "sysctl": host_files.read_sysctl,
    "limits": host_files.read_limits,
    "modules": host_files.read_modules,
    "modprobe": host_files.read_modprobe,
    "grub": host_files.read_kernel_arguments,
    "container": host_files.read_container,
    "nccl": host_files.read_nccl,
    "udev": host_files.read_udev,
    "unit": host_files.read_unit,
    "script": host_script.read_script,
}
_TABLES = (
    r"PORT|DEVICE_METADATA|BUFFER_[A-Z_]+|QUEUE|PORT_QOS_MAP|WRED_PROFILE|SCHEDULER|CABLE_LENGTH|PFC_WD|BGP_[A-Z_]+"
    r"|DSCP_TO_TC_MAP|DOT1P_TO_TC_MAP|TC_TO_[A-Z_]+_MAP|MAP_PFC_PRIORITY_TO_QUEUE|LOSSLESS_TRAFFIC_PATTERN|INTERFACE"
)
_LIMITS = "memlock|nofile|nproc|stack|core|data|rss|cpu|as|fsize|maxlogins|priority|locks|sigpending|msgqueue|nice"
_RUN = "gpus|device|ulimit|shm-size|ipc|network|net|privileged|cap-add|runtime"  # of docker run
_MODULES = r"mlx[45]_\w+|ib_\w+|rdma_\w+|irdma|efa|bnxt_re|siw|iw_\w+|nvidia[\w-]*|nv_peer_mem"
_PATTERNS = (  # in this order: what is surest first; blanks of one line, or empty lines take for ever
    ("sonic", rf'\A\s*\{{(?:.|\n)*?"(?:{_TABLES})(?:\|[^"]*)?"\s*:\s*\{{'),
    ("nvue", r"^[ \t]*(?:\S+@\S+\$ )?nv set \S"),
    ("nvue-yaml", r"^- (?:header|set):[ \t]*\r?$"),
    ("unit", r"^\[(?:Unit|Service)\]"),
    ("slurm", r"^[ \t]*(?:SwitchName=|TopologyPlugin=|(?:NodeName=\S+ +)?Name=\w+ .*File=)"),
    ("k8s", r"^[ \t]*kind:\s*\w"),
    ("netplan", r"^network:"),
    ("qos-policy", r"^[ \t]*(?:qos-levels|port-groups|qos-match-rules|qos-ulps)\s*$"),
    (
        "partitions",  # YAML has no keys with values, and no members after them
        r"^[\w.-]+[ \t]*=[ \t]*0x[0-9a-fA-F]+[ \t]*(?:,[ \t]*[\w=.]+[ \t]*)*:"
        r"|^[\w.-]+(?:,[ \t]*[\w=.]+)*[ \t]*:\s*(?:ALL(?:_[A-Z]+)?|SELF|0x[0-9a-fA-F]+)[ \t]*[=,;]",
    ),
    ("udev", r'\bNAME="'),
    (
        "script",
        r"^[ \t]*(?:sudo )?(?:mlnx_qos|cma_roce_\w+|mlxconfig|ethtool -|setpci|nmcli|systemctl|modprobe)\b",
    ),
    ("nccl", r"^[ \t]*(?:export )?NCCL_\w+="),
    ("grub", r"GRUB_CMDLINE_LINUX|^BOOT_IMAGE="),
    ("limits", rf"^[ \t]*\S+[ \t]+(?:soft|hard|-)[ \t]+(?:{_LIMITS})[ \t]+\S+"),
    ("modprobe", r"^(?:options|blacklist|install)\s+\w"),
    ("container", rf"^[ \t]*(?:(?:sudo )?(?:docker|podman|nerdctl) run\b|--(?:{_RUN})(?:[= ]|$))"),
    (
        "opensm",
        r"^(?:routing_engine|partition_config_file|root_guid_file|qos_max_vls|subnet_prefix|sm_priority|lmc|qos) ",
    ),
    ("guids", r"\A(?:[ \t]*(?:#.*)?\r?\n)*[ \t]*0x[0-9a-fA-F]{1,16}[ \t]*(?:#.*)?(?:\r?\n|\Z)"),
    ("sysctl", r"^[ \t]*-?(?:abi|crypto|debug|dev|fs|kernel|net|sunrpc|user|vm)(?:[./][\w*-]+)+\s*="),
    ("modules", rf"^(?:{_MODULES})[ \t]*(?:#.*)?\r?$"),
)
_COMPILED = tuple((kind, re.compile(pattern, re.M)) for kind, pattern in _PATTERNS)


Part = tuple[Configuration, Problems]  # what one file says, and what in it is no value


@record
class ReadFiles:
    """What files say together, what in them is no value, and which files nobody here reads."""

    configuration: Configuration
    problems: tuple[Problem, ...]
    unread: tuple[str, ...]


def kind_of(text: str) -> str:
    """Return the format of a text, '' where it is none of those known."""
    return next((kind for kind, pattern in _COMPILED if pattern.search(text)), "")


def listed(paths: Sequence[Path]) -> list[Path]:
    """Return the files that paths name, those of folders in order. Raises ConfigError."""
    found: list[Path] = []
    for path in paths:
        if os.path.isdir(path):
            found += [each for each in sorted(path.rglob("*")) if each.is_file()]
        else:
            found.append(path)
        if len(found) > MOST_FILES:
            raise ConfigError(f"got more than {MOST_FILES} files", file=path)
    return found


def read_files(paths: Sequence[Path], stage: Stage = silent) -> ReadFiles:
    """Read files and folders of files. Raises ConfigError for one that cannot be read at all."""
    parts: list[Part] = []
    unread = []
    files = listed(paths)
    for done, path in enumerate(files):
        stage(f"reading {path.name}", done / len(files))
        if path.name.endswith(_COMPANION):
            continue
        text = read_text(path, errors="replace")
        kind = kind_of(text)
        if not kind:
            if path in paths:
                raise ConfigError("is none of the formats that are read here", file=path)
            unread.append(str(path))
            continue
        try:
            parts.append(read_text_as(kind, text, str(path)))
        except ConfigError as error:
            if path in paths:
                raise
            parts.append(_not_understood(str(path), error))  # one file of a folder hides no other
    return joined(parts, unread)


def joined(parts: Sequence[Part], unread: Sequence[str] = ()) -> ReadFiles:
    """Return what files say together, in their order, from what each says by itself."""
    problems: list[Problem] = []
    said: dict[tuple[str, str, str], tuple[object, str]] = {}
    for read, found in parts:
        problems += found.found
        problems += _conflicts(read, said)
    alone = [read for read, _ in parts]
    whole = _merged_by_name(alone) if len(alone) >= _MANY else reduce(Configuration.merged, alone, Configuration())
    return ReadFiles(whole, tuple(problems), tuple(unread))


def _not_understood(file: str, error: ConfigError) -> Part:
    problems = Problems(file)
    problems.add("syntax", Path(file).name, f"got {error.message}", error.line)
    return Configuration(), problems


_MANY = 64
_ONCE = ("mtu_bytes", "address", "ipoib_mode")  # what several files say of an interface


def _conflicts(part: Configuration, said: dict[tuple[str, str, str], tuple[object, str]]) -> list[Problem]:
    """Statements of a file on an interface that contradict those before; `said` is modified in place."""
    found = []
    for switch in part.switches.values():
        known, file = said.setdefault((switch.name, "", "switch"), (switch, switch.file))
        if file != switch.file:
            what = f"got the name of a switch that {file} is about, expected a name of its own"
            found.append(Problem("twice", switch.file, None, switch.name, what))
    for host in part.hosts.values():
        names = [adapter.netdev for adapter in host.adapters.values() if adapter.netdev]
        for name in sorted({name for name in names if names.count(name) > 1}):
            what = f"got {names.count(name)} adapters of this name, expected a name for each"
            found.append(Problem("twice", host.file, None, f"{host.name}/{name}", what))
        for adapter in host.adapters.values():
            if adapter.device and adapter.netdev:
                known, file = said.setdefault((host.name, adapter.device, "name"), (adapter.netdev, host.file))
                if known != adapter.netdev:
                    what = f"got the name {adapter.netdev}, expected {known} as in {file}"
                    found.append(Problem("conflict", host.file, None, f"{host.name}/{adapter.device}", what))
            for field in _ONCE:
                value = getattr(adapter.link, field)
                if not value or not adapter.netdev:
                    continue
                known, file = said.setdefault((host.name, adapter.netdev, field), (value, host.file))
                if known != value:
                    what = f"got {field.removesuffix('_bytes')} {value}, expected {known} as in {file}"
                    found.append(Problem("conflict", host.file, None, f"{host.name}/{adapter.netdev}", what))
    return found


def _merged_by_name(parts: Sequence[Configuration]) -> Configuration:
    """Merge many parts, each host's files first: copying all that there is for each file takes too long."""
    by_host: dict[str, Configuration] = {}
    whole = Configuration()
    switches: dict[str, Switch] = {}
    for part in parts:
        switches.update(part.switches)
        if part.hosts:
            name = next(iter(part.hosts))
            by_host[name] = by_host.get(name, Configuration()).merged(part)
        elif not part.switches:
            whole = whole.merged(part)
    hosts = {name: host for part in by_host.values() for name, host in part.hosts.items()}
    return Configuration(switches, hosts, whole.subnet, whole.slurm, whole.manifests)


def read_text_as(kind: str, text: str, file: str) -> Part:
    """Return what a text of a known format says. Raises ConfigError."""
    if kind == "sonic":
        switch, problems = sonic.read_switch(text, file)
        return Configuration(switches={switch.name: switch}), problems
    if kind == "nvue":
        switch, problems = nvue.read_switch(text, file)
        return Configuration(switches={switch.name: switch}), problems
    if kind == "nvue-yaml":
        switch, problems = nvue.read_yaml_switch(text, file)
        return Configuration(switches={switch.name: switch}), problems
    if kind == "slurm":
        found, problems = slurm.read_slurm(text, file)
        return Configuration(slurm=found), problems
    if kind == "k8s":
        manifests, problems = k8s.read_manifests(text, file)
        return Configuration(manifests=manifests), problems
    if kind in _HOST:
        folder = Path(file).parent.name
        host, problems = _HOST[kind](text, file, folder or "host")
        return Configuration(hosts={host.name: host}), problems
    if kind == "partitions":
        subnet, problems = opensm.read_partitions(text, file)
    elif kind == "qos-policy":
        subnet, problems = opensm.read_policy(text, file)
    elif kind == "guids":
        name = Path(file).name
        role = next((role for role in ("root", "cn", "io") if name.startswith(role)), "root")
        subnet, problems = opensm.read_guids(text, file, role)
    else:
        subnet, problems = opensm.read_options(text, file)
    return Configuration(subnet=subnet), problems
