"""A captured job: classes of ranks, what each of them does in which order, and the groups that they call in.

A class is a set of ranks that did the same. Its operations are numbered from 0; each waits for earlier ones of the
same class (`after`), as streams and events made it. Ranks of a group meet at a collective by its number: the k-th
call on a group is the same collective on all of its ranks. A send meets the receive of the same pair of ranks and
tag, in order.

Compute is a time that was measured, or work by its shape, which becomes a time on the GPU that it is played on.
Sizes are as `nccl.lowering.tasks` counts them.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, get_args

from fabrictwin.base.records import record
from fabrictwin.nccl.lowering.tasks import KINDS, Kind

Sends = Literal["rendezvous", "eager"]
SENDS: tuple[Sends, ...] = get_args(Sends)
COLLECTIVES: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "send_recv")
CATEGORIES = ("tp", "pp", "dp", "ep", "cp", "other")


@record
class Work:
    """Work of a kernel by its shape: a product [m, n, k, batch], attention, bytes that it moves."""

    gemm: tuple[int, int, int, int] | None = None
    attention: tuple[int, int, int, int] | None = None  # batch, heads, width of keys and values, sequence
    backward: bool = False
    moved_bytes: int = 0
    dtype: str = "bf16"


@record
class Compute:
    """A stretch of compute: a time in ps, or work."""

    name: str
    after: tuple[int, ...]
    time_ps: int | None = None
    work: Work | None = None
    category: str = "compute"


@record
class Collective:
    """A call on a group."""

    kind: Kind
    group: str
    size_bytes: int
    after: tuple[int, ...]
    element_bytes: int = 1
    root: int = 0  # place in the group
    name: str = ""


@record
class Message:
    """A send or a receive. `peers` is the other rank of each rank of the class; a number is added to the rank."""

    sends: bool
    peers: int | tuple[int, ...]
    size_bytes: int
    after: tuple[int, ...]
    tag: int = 0
    name: str = ""

    def peer(self, place: int, rank: int) -> int:
        """The other rank of the `place`-th rank of the class."""
        return rank + self.peers if isinstance(self.peers, int) else self.peers[place]


Operation = Compute | Collective | Message


@record
class RankClass:
    """Ranks that did the same."""

    name: str
    ranks: tuple[int, ...]
    operations: tuple[Operation, ...]


@record
class Group:
    """Groups of ranks that call the same at the same time: all of a dimension of a device mesh, say."""

    name: str
    members: tuple[tuple[int, ...], ...]
    category: str = "other"


@record
class Unplaced:
    """What of a trace could not be placed, how often, and why."""

    what: str
    count: int
    why: str


@record
class CapturedJob:
    """A captured job."""

    name: str
    world: int
    classes: tuple[RankClass, ...]
    groups: tuple[Group, ...]
    source: str = ""
    sends: Sends = "rendezvous"
    unplaced: tuple[Unplaced, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def operations(self) -> int:
        """Operations of all classes."""
        return sum(len(one.operations) for one in self.classes)


def category_of(name: str) -> str:
    """Part of the breakdown that a group's traffic belongs to, by the names that frameworks give groups."""
    words = name.lower().replace("-", "_").split("_")
    for category, known in (
        ("tp", ("tp", "tensor", "mp")),
        ("pp", ("pp", "pipe", "pipeline")),
        ("ep", ("ep", "expert", "experts", "moe")),
        ("cp", ("cp", "context", "sp")),
        ("dp", ("dp", "fsdp", "data", "replicate", "shard", "ddp", "zero")),
    ):
        if any(word in known for word in words):
            return category
    return "other"
