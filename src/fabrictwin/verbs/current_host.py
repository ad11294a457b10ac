"""The host of this process: the twin whose adapters it sees, and the host that it runs on.

A program that imports `pyverbs` runs on one host, and sees that host's devices. A program may also hold devices
of several hosts: `Context(name="mlx5_0", host="host-1")`, or by the fabric's name `Context(name="host-1/mlx5_0")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabrictwin.base.errors import ConfigError
from fabrictwin.verbs.adapter.world import World

if TYPE_CHECKING:
    from fabrictwin.base.capabilities import Fidelity
    from fabrictwin.engines.base.engine import Engine
    from fabrictwin.twin import Twin
    from fabrictwin.verbs.adapter.adapter import Adapter

_world: World | None = None
_host = ""


def use(twin: Twin, *, host: str | None = None, engine: Fidelity | Engine = "packet") -> World:
    """From now on this process runs on a host of `twin` (the first, where none is named).

    `engine` times messages: "packet" with every packet on the fabric, "flow" as fluid that shares links,
    "analytic" by closed forms, each alone; one that runs already is taken as it is. Raises ConfigError.
    """
    global _world, _host
    world = World(twin, engine=twin.start_engine(engine) if isinstance(engine, str) else engine)
    name = twin.fabric.host_names[0] if host is None else host
    world.host(name)
    _world, _host = world, name
    return world


def world() -> World:
    """The adapters that this process sees. Raises ConfigError where no twin is in use."""
    if _world is None:
        raise ConfigError(
            "no twin is in use: call fabrictwin.verbs.install(twin) or fabrictwin.verbs.use(twin) first"
        )
    return _world


def local_host() -> str:
    """The host that this process runs on."""
    return _host


def adapters(host: str | None = None) -> list[Adapter]:
    """The adapters of a host, of this process's own where none is named; none where no twin is in use."""
    if _world is None:
        return []
    return _world.host(_host if host is None else host)


def find(name: str, host: str | None = None) -> Adapter | None:
    """An adapter by its device name on a host, or by the fabric's name, `host-1/mlx5_0`."""
    if host is None and "/" in name:
        host, _, name = name.rpartition("/")
        if host not in world().fabric.host_names:
            return None
    return next((adapter for adapter in adapters(host) if adapter.name == name), None)
