"""The NCCL_* variables that the twin honours, with NCCL's meaning; the others are named.

A field is the variable in lower case without `NCCL_`; unset is NCCL's default of that release, or None where NCCL
decides by itself. Precedence is NCCL's: the environment, then the file that NCCL_CONF_FILE names. NCCL would also
read `~/.nccl.conf` and `/etc/nccl.conf`; the twin's hosts are not the machine that it runs on, so it reads only
files that are named to it. Defaults, and the releases in which they changed, are those of NCCL's sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.nccl.settings.algorithm_selection import Selection
from fabrictwin.nccl.settings.device_filters import DeviceFilter
from fabrictwin.nccl.settings.variable_values import Note, Reading
from fabrictwin.nccl.settings.version import DEFAULT, Version, version, version_of
from fabrictwin.nccl.topology.graph_types import PathType

PREFIX = "NCCL_"
DEFAULT_SUBSYSTEMS = frozenset(("INIT", "BOOTSTRAP", "ENV"))
DEFAULT_RELEASE = version_of(DEFAULT)


@record
class Settings:
    """The settings that NCCL goes by. Made by `read_settings`."""

    # algorithms, protocols, channels, threads
    algo: Selection | None = None  # algorithms allowed, per collective since 2.24
    proto: Selection | None = None  # protocols allowed, per collective since 2.24
    min_nchannels: int | None = None  # least number of channels
    max_nchannels: int | None = None  # greatest number of channels
    min_nrings: int | None = None  # older name of NCCL_MIN_NCHANNELS
    max_nrings: int | None = None  # older name of NCCL_MAX_NCHANNELS
    min_ctas: int | None = None  # least number of thread blocks
    max_ctas: int | None = None  # greatest number of thread blocks
    min_p2p_nchannels: int = 1  # least number of channels of sends
    max_p2p_nchannels: int = 64  # greatest number of channels of sends
    nchannels_per_net_peer: int | None = None  # channels of sends for each peer on the network
    nthreads: int | None = None  # threads of a block for LL and Simple
    ll128_nthreads: int | None = None  # threads of a block for LL128
    thread_thresholds: tuple[int, ...] = ()  # bytes a thread before channels are added: tree's, then ring's
    buffsize: int | None = None  # bytes of a channel's buffer for Simple (4 MiB)
    ll_buffsize: int | None = None  # the same for LL
    ll128_buffsize: int | None = None  # the same for LL128
    p2p_ll_threshold: int = 16384  # sends up to this size use LL
    p2p_net_chunksize: int = 131072  # chunk of a send over the network
    p2p_nvl_chunksize: int = 524288  # chunk of a send over NVLink
    p2p_pci_chunksize: int = 131072  # chunk of a send over PCIe
    nvls_chunksize: int = 131072  # chunk of NVLS
    nvlstree_max_chunksize: int | None = None  # greatest chunk of NVLS tree
    net_overhead: int | None = None  # nanoseconds that posting to the network takes, for the cost model
    ll128_c2c: int = 1  # LL128 over C2C and PXN paths of Hopper and later (2.27 on)
    tuner_plugin: str | None = (
        None  # library of a tuner, none for NCCL's own (EFA's plugin brings one from 2.27 on)
    )
    pat_enable: int = 2  # PAT: 0 off, 1 on, 2 where each host has one rank (2.23 on)
    # graph
    cross_nic: int = 2  # 0 stay on one rail, 1 may cross rails, 2 cross where that is no worse
    nvls_enable: int = 2  # 0 never, 1 always, 2 where the switches can
    nvls_nchannels: int | None = None  # channels of NVLS
    collnet_enable: int = 0  # in-network reduction where switches can
    collnet_node_threshold: int = 2  # fewest hosts for in-network reduction
    nvb_disable: int = 0  # 1 no path through another GPU's NVLinks
    mnnvl_enable: int = 2  # NVLink domains over several hosts: 0 never, 1 always, 2 where there is one
    topo_file: str | None = None  # topology XML that adds to what is detected
    topo_dump_file: str | None = None  # write the detected topology there
    # transports inside a host
    p2p_disable: bool = False  # 1 no direct access between GPUs
    p2p_level: PathType | None = None  # farthest path for direct access between GPUs
    shm_disable: int = 0  # 1 no shared host memory
    net_disable_intra: int = 0  # 1 never the network between GPUs of one host
    # network
    net: str | None = None  # the network to use: IB, Socket or a plugin's
    net_gdr_level: PathType | None = None  # farthest path between adapter and GPU for GPUDirect RDMA
    net_gdr_read: int | None = None  # 1 GPUDirect RDMA for sends too (default: with NVLink)
    net_gdr_c2c: int = 1  # GPUDirect RDMA over a C2C link (2.26 on)
    pxn_disable: int = 0  # 1 never reach another rail through the neighbour's adapter
    pxn_c2c: int = 1  # PXN over a C2C link (2.27 on)
    p2p_pxn_level: int = 2  # PXN for sends: 0 never, 1 where the preferred adapter is not the best, 2 always
    ib_disable: int = 0  # 1 no verbs: sockets instead
    ib_hca: DeviceFilter | None = None  # adapters to use: prefixes, `=` names, `^` all but
    ib_merge_nics: int = 1  # ports of one adapter count as one (2.21 on)
    ib_gid_index: int = -1  # GID of RoCE; -1 looks for RoCE v2 over IPv4
    ib_tc: int | None = None  # traffic class: its upper six bits are the DSCP
    ib_sl: int | None = None  # service level of InfiniBand
    ib_qps_per_connection: int = 1  # queue pairs of a connection
    ib_split_data_on_qps: int = 0  # 1 a message is split over queue pairs, 0 they take turns
    ib_adaptive_routing: int | None = None  # adaptive routing (default: on InfiniBand)
    ib_timeout: int = 20  # time-out of a queue pair, 4.096 µs × 2^n
    ib_retry_cnt: int = 7  # retries of a queue pair
    ib_pci_relaxed_ordering: int = 2  # relaxed ordering of PCIe: 0 off, 1 on, 2 where it can be
    socket_ifname: DeviceFilter | None = None  # interfaces to use: prefixes, `=` names, `^` all but
    socket_family: str | None = None  # AF_INET or AF_INET6
    socket_nthreads: int | None = None  # threads of a socket connection
    nsocks_perthread: int | None = None  # sockets of each such thread
    # log
    debug: str | None = None  # how much to print: VERSION, WARN, INFO, TRACE
    debug_subsys: frozenset[str] = DEFAULT_SUBSYSTEMS  # subsystems to print; `^` all but
    debug_file: str | None = None  # print there; %h host, %p process

    release: Version = DEFAULT_RELEASE
    given: tuple[tuple[str, str], ...] = ()  # every NCCL_ variable that was set and means something, as written
    notes: tuple[Note, ...] = ()

    @property
    def p2p_limit(self) -> PathType | None:
        """NCCL_P2P_DISABLE and NCCL_P2P_LEVEL as one: the farthest path, None where NCCL decides."""
        return PathType.LOC if self.p2p_disable else self.p2p_level


# how a variable is read that is no plain number
READERS: dict[str, Callable[[Reading, str], Any]] = {
    "algo": Reading.algorithms,
    "proto": Reading.protocols,
    "thread_thresholds": Reading.thresholds,
    "tuner_plugin": Reading.tuner,
    "topo_file": Reading.text,
    "topo_dump_file": Reading.text,
    "p2p_disable": Reading.disables,
    "p2p_level": Reading.level,
    "net": Reading.text,
    "net_gdr_level": Reading.level,
    "ib_hca": Reading.devices,
    "socket_ifname": Reading.interfaces,
    "socket_family": Reading.text,
    "debug": Reading.debug,
    "debug_subsys": Reading.subsystems,
    "debug_file": Reading.text,
}

# defaults that a later release changed
DEFAULTS_BEFORE: dict[str, tuple[tuple[str, Any], ...]] = {
    "debug_subsys": (("2.23", frozenset(("INIT", "ENV"))),),
    "nvls_nchannels": (("2.25", 16),),
    "net_gdr_c2c": (("2.27", 0),),
    "pxn_c2c": (("2.28", 0),),
    "ib_gid_index": (("2.21", 0),),
    "ib_split_data_on_qps": (("2.20", 1),),
    "ib_timeout": (("2.23", 18),),
}

# what is read and changes nothing here, and why
NOT_FELT = {
    "ib_merge_nics": "every port of the catalog's adapters is an adapter of its own",
}

VARIABLES = tuple(PREFIX + f.name.upper() for f in fields(Settings) if f.name not in ("release", "given", "notes"))


@cache
def known_without_effect() -> tuple[str, ...]:
    """Variables that NCCL has and the twin does not model."""
    text = files("fabrictwin.nccl").joinpath("data/variables.txt").read_text(encoding="utf-8")
    rows = [row for row in text.splitlines() if row and not row.startswith("#")]
    return tuple(name for name in rows if name not in VARIABLES)


def read_settings(
    environment: Mapping[str, str],
    *,
    release: str | Version = DEFAULT,
    conf: str | Path | None = None,
) -> Settings:
    """Settings of a mapping of variables (those not of NCCL are passed over). Raises ConfigError."""
    at = version(release) if isinstance(release, str) else release
    values = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    named = conf if conf is not None else values.get("NCCL_CONF_FILE") or None
    if named is not None:
        values = {**read_conf(named), **values}
    found: dict[str, Any] = {}
    notes: list[Note] = []
    given: list[tuple[str, str]] = []
    for name, changes in DEFAULTS_BEFORE.items():
        for before, value in changes:
            if at < version_of(before):
                found[name] = value
    for name in sorted(values):
        text = values[name]
        if name not in VARIABLES:
            notes += _unmodelled(name)
            continue
        if not text:
            continue
        given.append((name, text))
        reading, key = Reading(name, at), name.removeprefix(PREFIX).lower()
        value = READERS.get(key, Reading.integer)(reading, text)
        notes += reading.notes
        if key in NOT_FELT:
            notes.append(Note(name, f"has no effect in the twin: {NOT_FELT[key]}"))
        # -1 and -2 are NCCL's own ways to write "unset"
        if value is not None and not (key not in READERS and value < 0 and getattr(Settings, key) is None):
            found[key] = value
    return Settings(**found, release=at, given=tuple(given), notes=tuple(notes))


def _unmodelled(name: str) -> list[Note]:
    if name == "NCCL_CONF_FILE":
        return []
    if name in known_without_effect():
        return [Note(name, "has no effect in the twin")]
    known = [*VARIABLES, *known_without_effect()]
    # the common prefix would make every name look alike
    hint = did_you_mean(name.removeprefix(PREFIX), [other.removeprefix(PREFIX) for other in known])
    return [Note(name, "is no variable of NCCL" + hint.replace("mean '", "mean 'NCCL_"))]


def read_conf(path: str | Path) -> dict[str, str]:
    """A file like /etc/nccl.conf: `NAME=value` lines, `#` first for a comment; the first of a name holds."""
    from fabrictwin.base.textfile import read_text

    result: dict[str, str] = {}
    for row in read_text(path).split("\n"):
        row = row.removesuffix("\r")
        name, equals, value = row.partition("=")
        if row.startswith("#") or not equals:
            continue
        result.setdefault(name[:1023], value[:1023])
    return {name: value for name, value in result.items() if name.startswith(PREFIX)}


def from_mapping(
    mapping: Mapping[str, Any],
    *,
    release: str | Version = DEFAULT,
    file: str | None = None,
    line: int | None = None,
) -> Settings:
    """`nccl:` of a spec: variables by name with a text or a number. An unknown name is an error here."""
    values: dict[str, str] = {}
    for name, value in mapping.items():
        known = [*VARIABLES, *known_without_effect()]
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"got an unknown variable, expected one of NCCL's{hint}", file=file, line=line, key=name
            )
        if isinstance(value, bool):
            value = int(value)
        if not isinstance(value, str | int):
            raise ConfigError(
                f"got {value!r:.60}, expected text or a whole number", file=file, line=line, key=name
            )
        values[name] = str(value)
    try:
        return read_settings(values, release=release)
    except ConfigError as error:
        raise error.within(file=file, line=line) from None
