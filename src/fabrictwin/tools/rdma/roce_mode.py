"""Kind of RoCE that a connection takes when nobody says: the connection manager's default, by device.

On a host that is `/sys/kernel/config/rdma_cm`, which `cma_roce_mode` writes. The twin keeps it in a file beside
the cluster's (`cluster.yaml.roce-modes`): a line `HOST DEVICE v1`, or `v2`, for each device that was set.
"""

from __future__ import annotations

from pathlib import Path

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.textfile import read_text
from fabrictwin.verbs.adapter.gid import ROCE_V1, ROCE_V2
from fabrictwin.verbs.adapter.world import World

WORDS = {ROCE_V1: "v1", ROCE_V2: "v2"}
_KINDS = {word: kind for kind, word in WORDS.items()}


def file_of(cluster: str | Path) -> Path:
    """Return the file that keeps the modes of a cluster's devices."""
    path = Path(cluster)
    return path.with_name(path.name + ".roce-modes")


def read(cluster: str | Path) -> dict[tuple[str, str], int]:
    """The modes that were set, by host and device. Raises ConfigError."""
    path = file_of(cluster)
    modes: dict[tuple[str, str], int] = {}
    if not path.exists():
        return modes
    for number, line in enumerate(read_text(path).splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 3 or parts[2] not in _KINDS:
            raise ConfigError(
                f"got {quoted(line)}, expected a host, a device, and v1 or v2", file=path, line=number
            )
        modes[parts[0], parts[1]] = _KINDS[parts[2]]
    return modes


def write(cluster: str | Path, modes: dict[tuple[str, str], int]) -> None:
    """Keep modes for a cluster's devices."""
    text = "".join(f"{host} {device} {WORDS[kind]}\n" for (host, device), kind in sorted(modes.items()))
    path = file_of(cluster)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def apply(world: World, cluster: str | Path) -> None:
    """Let a world's connections take the modes that were set. Raises ConfigError for a device that it lacks."""
    for (host, device), kind in read(cluster).items():
        try:
            known = {adapter.name: adapter for adapter in world.host(host)}
        except ConfigError as error:
            raise error.within(file=file_of(cluster)) from None
        if device not in known:
            raise ConfigError(
                f"got {device!r} of {host}, expected one of {', '.join(known)}{did_you_mean(device, known)}",
                file=file_of(cluster),
            )
        known[device].roce_mode = kind
