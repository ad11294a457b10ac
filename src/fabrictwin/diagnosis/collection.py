"""A shell script that gathers on a cluster what the doctor reads: read-only, no agent, one tar archive.

Each host gets a folder of its own in the archive, by which the doctor tells hosts apart. What a host has not is no
fault of it: a tool that is not there is listed by name (`absent.txt`), a file that is not there is passed over.
What a tool says when it fails is kept (`errors.txt`), without words of the script's own, which could be taken for
a message. Nothing is changed on any host.
"""

from __future__ import annotations

import re
import shlex

from fabrictwin.base.errors import ConfigError, quoted

# file, command: what the readers take
COMMANDS = (
    ("ibstat.txt", "ibstat"),
    ("ibv_devinfo.txt", "ibv_devinfo -v"),
    ("show_gids.txt", "show_gids"),
    ("rdma-link.txt", "rdma link"),
    ("rdma-statistic.txt", "rdma statistic"),
    (
        "sysfs-infiniband.txt",
        "grep -rs . /sys/class/infiniband/*/ports/*/counters /sys/class/infiniband/*/ports/*/hw_counters "
        "/sys/class/infiniband/*/ports/*/state /sys/class/infiniband/*/ports/*/phys_state "
        "/sys/class/infiniband/*/ports/*/rate "
        "/sys/class/infiniband/*/ports/*/link_layer "
        "/sys/class/infiniband/*/hca_type /sys/class/infiniband/*/sys_image_guid",
    ),
    ("nvidia-smi-q.txt", "nvidia-smi -q"),
    ("nvidia-smi-topo.txt", "nvidia-smi topo -m"),
    ("nvidia-smi-p2p.txt", "nvidia-smi topo -p2p r"),
    ("nvlink-status.txt", "nvidia-smi nvlink --status"),
    ("nvlink-errors.txt", "nvidia-smi nvlink -e"),
    ("lspci.txt", "lspci -vvv"),
    ("dmesg.txt", "dmesg --time-format iso 2>/dev/null || dmesg"),
    ("fabricmanager.log", "[ ! -r /var/log/fabricmanager.log ] || tail -n 5000 /var/log/fabricmanager.log"),
    (
        "fabricmanager-status.txt",
        "! systemctl cat nvidia-fabricmanager > /dev/null 2>&1 || "
        "systemctl --no-pager status nvidia-fabricmanager",
    ),
    ("ip-link.txt", "ip -s -s link"),
    ("ipmi-sel.txt", "ipmitool sel elist last 200"),
    ("lsmod.txt", "lsmod"),
    ("cmdline.txt", "cat /proc/cmdline"),
    ("limits.txt", "ulimit -a; df -h /dev/shm"),
    (
        "environment.txt",
        "env | grep -E '^(NCCL|UCX|FI|TORCH_NCCL)_'; cat /etc/nccl.conf ~/.nccl.conf 2> /dev/null || true",
    ),
    ("ncclras.txt", "ncclras -v; sleep 10; ncclras -v"),
)
# for every Ethernet interface that an RDMA device has
INTERFACES = (
    ("ethtool", "ethtool -S"),
    ("ethtool-settings", "ethtool"),
    ("ethtool-module", "ethtool -m"),
    ("mlnx_qos", "mlnx_qos -i"),
)
# once for the fabric, where a subnet manager answers
FABRIC = (
    ("ibnetdiscover.txt", "ibnetdiscover"),
    ("iblinkinfo.txt", "iblinkinfo"),
    ("ibqueryerrors.txt", "ibqueryerrors --details"),
)
LARGEST_DUMP = 64 << 20  # bytes
ALWAYS = ("[", "!", "grep", "cat", "env", "ulimit")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}")


def script(hosts: tuple[str, ...] = (), *, launcher: str = "ssh") -> str:
    """The script's text. Raises ConfigError for a name that is none of a host."""
    for host in hosts:
        if not _NAME.fullmatch(host):
            raise ConfigError(f"got {quoted(host)}, expected the name of a host", key="--hosts")
    return "\n".join([*_head(), *_gather(), *_drive(hosts, launcher)]) + "\n"


def _head() -> list[str]:
    return [
        "#!/bin/sh",
        "# Gathers what `fabrictwin doctor` reads. Reads only; writes one tar archive into the current folder.",
        "set -u",
        "stamp=$(date -u +%Y%m%dT%H%M%SZ)",
        "work=$(mktemp -d) || exit 1",
        "trap 'rm -rf \"$work\"' EXIT",
        "",
    ]


def _gather() -> list[str]:
    return [
        'gather=$(cat <<"END_OF_GATHER"',
        "here=$(mktemp -d) || exit 1",
        "name=$(hostname -s)",
        'mkdir -p "$here/$name" && cd "$here/$name" || exit 1',
        'have() { command -v "$1" > /dev/null && return; '
        'grep -qsx "$1" absent.txt || echo "$1" >> absent.txt; return 1; }',
        'run() { file=$1; shift; timeout 60 sh -c "$*" > "$file" 2>> errors.txt; '
        '[ -s "$file" ] || rm -f "$file"; }',
        *(f"{_if_there(command)}run {file} {shlex.quote(command)}" for file, command in COMMANDS),
        # dumps of flight recorders, as PyTorch names them by default: those that an archive has room for
        "for dump in /tmp/nccl_trace_rank_* ~/.cache/torch/nccl_trace_rank_*; do",
        f'  [ -f "$dump" ] && [ "$(wc -c < "$dump")" -lt {LARGEST_DUMP} ] && cp "$dump" . 2>> errors.txt',
        "done",
        "for device in /sys/class/infiniband/*/device/net/*; do",
        '  [ -e "$device" ] || continue',
        "  port=${device##*/}",
        *(f'  {_if_there(command)}run {name}-$port.txt "{command} $port"' for name, command in INTERFACES),
        "done",
        "[ ! -f errors.txt ] || [ -s errors.txt ] || rm -f errors.txt",
        'cd "$here" && tar cf - "$name"; rm -rf "$here"',
        "END_OF_GATHER",
        ")",
        "",
    ]


def _if_there(command: str) -> str:
    """Return what asks for a command's tool; nothing for the tools of every system."""
    tool = command.split()[0]
    return "" if tool in ALWAYS else f"have {tool} && "


def _drive(hosts: tuple[str, ...], launcher: str) -> list[str]:
    reach = (
        "ssh -o BatchMode=yes -o ConnectTimeout=10 $host sh -s"
        if launcher == "ssh"
        else "srun -N1 -n1 -w $host sh -s"
    )
    if hosts:
        lines = [
            f"for host in {' '.join(hosts)}; do",
            f'  printf "%s\\n" "$gather" | {reach} 2>> "$work/errors.txt" | tar xf - -C "$work" \\',
            '    || echo "$host: not reached" >&2',
            "done",
        ]
    else:
        lines = ['printf "%s\\n" "$gather" | sh -s | tar xf - -C "$work"']
    fabric = [
        'mkdir -p "$work/fabric"',
        "if command -v ibnetdiscover > /dev/null && sminfo > /dev/null 2>&1; then",
    ]
    fabric += [f'  timeout 300 {command} > "$work/fabric/{file}" 2> /dev/null' for file, command in FABRIC]
    fabric.append('  cp /var/tmp/ibdiagnet2/*.db_csv /tmp/ibdiagnet2/*.db_csv "$work/fabric/" 2> /dev/null')
    return [
        *lines,
        *fabric,
        "fi",
        "out=$PWD/doctor-$stamp.tar",
        'tar cf "$out" -C "$work" . && echo "$out"',
    ]
