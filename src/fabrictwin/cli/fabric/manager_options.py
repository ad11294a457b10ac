"""Settings of the twin's managers from what was typed, over what the spec's `routing` says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fabrictwin.cli.fabric.engine_options import EngineOptions
    from fabrictwin.fabric.fabric import Fabric
    from fabrictwin.routing.engines.routing_options import Options
    from fabrictwin.subnet.manager.settings.manager_settings import Settings


def settings_of(
    engine: str, options: Options, *, priority: int = 0, qos: bool = True, qos_options: Path | None = None
) -> Settings:
    """The manager's settings; an engine of no name is auto. Raises ConfigError."""
    from fabrictwin.base.errors import ConfigError, did_you_mean
    from fabrictwin.routing.engines.registry import ENGINES
    from fabrictwin.subnet.manager.settings.manager_settings import Settings
    from fabrictwin.subnet.manager.settings.qos import read_qos

    engine = engine or "auto"
    if engine not in ENGINES:
        hint = did_you_mean(engine, ENGINES)
        raise ConfigError(f"got {engine!r}, expected one of {', '.join(ENGINES)}{hint}", key="--engine")
    if qos_options is not None and not qos:
        raise ConfigError("got options of a quality of service that is left alone", key="--qos-options")
    quality = {} if qos_options is None else read_qos(qos_options)
    return Settings(engine=engine, routing=options, priority=priority, qos=qos, **quality)


def routing_over_spec(cluster: Path, fabric: Fabric, engine: str, given: EngineOptions) -> tuple[str, Options]:
    """(engine, options): what was typed, otherwise what the file's `routing` says. Raises ConfigError.

    Options of the file are taken with its engine alone: another engine may have no use for them.
    """
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.twin.routed_twin import engine_of, routing_options

    spec = load_cluster(cluster)
    if engine and engine != engine_of(spec):
        return engine, given.read()
    return engine_of(spec), given.read(routing_options(spec, fabric))
