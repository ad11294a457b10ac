"""What captured ranks tell each other that decides what programs do: objects, and single whole numbers.

Stages of a pipeline tell each other shapes, and vote on whether they need to. Each rank that is captured writes
what it sends into the capture's folder, and waits there for what it receives. Ranks that are not captured are
taken to do as this one: what is gathered is this rank's object from each, a broadcast from elsewhere is refused.
"""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

from fabrictwin.base.errors import SimulatedError
from fabrictwin.torch.capture.record import meet

LONGEST_WAIT_S = 600.0
LOOK_EVERY_S = 0.01


class Exchange:
    """What one rank tells and is told."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self._counts: dict[tuple[str, int, int], int] = {}

    def _path(self, kind: str, source: int, target: int) -> Path:
        number = self._counts.get((kind, source, target), 0)
        self._counts[kind, source, target] = number + 1
        return self.folder / f"{kind}.{source}.{target}.{number}"

    def _tell(self, kind: str, target: int, told: Any) -> None:
        meet(self.folder, self.rank, target)
        path = self._path(kind, self.rank, target)
        partial = path.with_name("partial." + path.name)
        partial.write_bytes(pickle.dumps(told))
        os.replace(partial, path)

    def _told(self, kind: str, source: int) -> Any:
        meet(self.folder, self.rank, source)
        path, until = self._path(kind, source, self.rank), time.monotonic() + LONGEST_WAIT_S
        while not path.exists():
            if time.monotonic() > until:
                raise SimulatedError(f"sent no {kind}", f"rank {source}", f"rank {self.rank} waits for it")
            time.sleep(LOOK_EVERY_S)
        return pickle.loads(path.read_bytes())

    def message(self, tensor: Any, peer: int, *, sends: bool) -> None:
        """Carry the value of a tensor of one whole number, where its sender has one."""
        if tensor.numel() != 1 or tensor.is_floating_point():
            meet(self.folder, self.rank, peer)
        elif sends:
            known = getattr(tensor, "constant", None)
            with _disable_current_modes():
                told = None if known is None else known.item()
            self._tell("number", peer, told)
        else:
            found = self._told("number", peer)
            with _disable_current_modes():
                tensor.constant = None if found is None else torch.full(tensor.shape, found, dtype=tensor.dtype)

    def send(self, objects: list[Any], dst: int | None = None, group: Any = None, *_: Any, **rest: Any) -> None:
        """Write objects for another rank."""
        self._tell("object", self._global(dst, group, rest.get("group_dst")), objects)

    def receive(self, objects: list[Any], src: int | None = None, group: Any = None, *_: Any, **rest: Any) -> int:
        """Read what another rank wrote; its rank."""
        source = self._global(src, group, rest.get("group_src"))
        objects[:] = self._told("object", source)
        return source

    def gather(self, objects: list[Any], mine: Any, group: Any = None) -> None:
        """Take this rank's object for every rank's."""
        objects[:] = [mine] * len(objects)

    def broadcast(
        self, objects: list[Any], src: int | None = None, group: Any = None, *_: Any, **rest: Any
    ) -> None:
        """Keep what this rank broadcasts. Raises SimulatedError where another does."""
        source = self._global(src, group, rest.get("group_src"))
        if source != self.rank:
            raise SimulatedError(
                "cannot be captured", f"broadcast_object_list from rank {source} to rank {self.rank}",
                "expected objects that every rank makes itself",
            )  # fmt: skip

    @staticmethod
    def _global(rank: int | None, group: Any, place: int | None) -> int:
        if place is not None:
            return int(dist.get_global_rank(group or dist.group.WORLD, place))
        return int(rank or 0)


def exchange_objects(exchange: Exchange) -> None:
    """Let functions of torch.distributed that carry objects do so among the ranks that are captured."""
    for module in (dist, c10d):
        for name, made in (
            ("send_object_list", exchange.send),
            ("recv_object_list", exchange.receive),
            ("all_gather_object", exchange.gather),
            ("broadcast_object_list", exchange.broadcast),
        ):
            setattr(module, name, made)
