"""Captures of what the verbs of a process put on the wire."""

from __future__ import annotations

from pathlib import Path

from fabrictwin.capture.recorder import CaptureRequest, Recorder
from fabrictwin.verbs import current_host
from fabrictwin.verbs.adapter.world import World


def capture(
    path: str | Path, *, at: tuple[str, ...] = (), snaplen: int = 0, world: World | None = None
) -> Recorder:
    """Record every packet of adapters (`host-0`, `host-0/mlx5_0`; all where none is named) from now on.

    Before queue pairs connect; close the recorder, or use it as a context, when done. Raises ConfigError where the
    engine has no packets.
    """
    world = current_host.world() if world is None else world
    recorder = CaptureRequest(Path(path), at, snaplen).start(world.engine)
    world.captures = True
    return recorder
