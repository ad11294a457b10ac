"""The program: what each rank does, and what each thing it does waits for.

A program is a graph of operations over *actors*. An actor is a set of ranks that do the same at the same time;
a folded program has one actor per pipeline stage, an unfolded one has one per rank. An operation is a stretch
of compute on one actor, or a *communication* among ranks; it starts when all operations in `after` have ended.
Streams need no notion of their own: what shares a stream is chained by `after`.

A communication holds channels, and a channel holds the order of its ranks and the slice of the buffer it
carries; edges and single steps follow from the pattern (`program.patterns`), so that memory grows with ranks
times channels.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I8, I16, I32, I64
from fabrictwin.base.records import record
from fabrictwin.kernel.codes import NONE as NONE
from fabrictwin.kernel.codes import OpKind as OpKind


class Pattern(IntEnum):
    """Patterns in which ranks of a channel pass data on, in the order of its `ranks` (see program.patterns)."""

    MESSAGE = 0  # ranks[0] sends to ranks[1]
    RING_ALL_REDUCE = 1
    RING_ALL_GATHER = 2
    RING_REDUCE_SCATTER = 3
    CHAIN_BROADCAST = 4  # ranks[0] is the root; each passes on to the next
    TREE_ALL_REDUCE = 5  # `parent` gives the tree: reduce to the root, broadcast back
    SHIFT = 6  # ranks[i] sends to ranks[(i + shift) mod n]: one step of a pairwise all-to-all
    TREE_REDUCE = 7  # `parent` gives the tree: to the root only
    TREE_BROADCAST = 8  # from the root only
    PAT_ALL_GATHER = 9  # blocks down binomial trees, one a rank, the farthest hop first
    PAT_REDUCE_SCATTER = 10  # the same trees upwards


class Seat(IntEnum):
    """Kinds of places in a channel. Only trees have other seats than ranks."""

    RANK = 0  # a rank's buffer
    RELAY = 1  # scratch memory of a rank's GPU
    NVSWITCH = 2  # reduction and multicast in the NVSwitches of the host of `ranks[i]`, which is any of its ranks
    SWITCH = 3  # reduction in a network switch: `ranks[i]` is its fabric node


HUBS = (Seat.NVSWITCH, Seat.SWITCH)


@record
class Channels:
    """C channels as columns; R is the sum of their ranks.

    A channel carries the bytes `offset_bytes .. offset_bytes + payload_bytes` of the communication's buffer.
    What "buffer" means is the collective's: all-reduce and broadcast, the whole vector; all-gather and
    reduce-scatter, the *full* vector (n shards); a message, what is sent; a shift, one peer's block.
    """

    pattern: I8  # [C] Pattern
    rank_start: I32  # [C + 1]
    ranks: I32  # [R]
    parent: I32  # [R] trees: position in the channel of the parent, NONE at the root and for other patterns
    shift: I32  # [C] SHIFT only, else 0
    payload_bytes: I64  # [C]
    offset_bytes: I64  # [C]
    chunk_bytes: I64  # [C] the unit that is passed on: a rank forwards a chunk once it has all of it
    element_bytes: int = 1  # shards and chunks are whole elements; all columns of bytes are multiples of it
    seat: I8 | None = None  # [R] Seat; None: all are ranks

    def __len__(self) -> int:
        return len(self.pattern)

    @property
    def seats(self) -> I8:
        """[R] what sits where."""
        return np.zeros(len(self.ranks), np.int8) if self.seat is None else self.seat


@record
class Connections:
    """Paths and costs of each edge of a communication, as columns in the order of `patterns.edges`; E rows.

    An edge goes from its source over `out` (host memory, or the GPU whose adapter it uses), the adapters
    `nic_out` and `nic_in`, and `into` (host memory) to its target. NONE leaves a stage out; without adapters the
    edge stays in its host, or takes the shortest path where the two are on different ones.
    """

    cost_ps: I64  # what software spends on a step, beside the wire
    out: I32  # fabric nodes
    nic_out: I32  # adapters
    nic_in: I32
    into: I32
    paths: I32  # over how many network paths its bytes are spread; 1 is one queue pair
    round_robin: npt.NDArray[np.bool_]  # each message goes whole over the next path; else it is split over all
    limit: npt.NDArray[np.float64]  # bytes a picosecond that its ends manage; inf where only wires count
    message_ps: I64  # between messages of a connection at least: its ends' software hands one on after the other
    send_ps_per_byte: npt.NDArray[np.float64]  # of a processor core at `out`; 0 where adapters do the work
    receive_ps_per_byte: npt.NDArray[np.float64]  # of cores at `into`: the interrupt's and the reading thread's
    read_ps_per_byte: npt.NDArray[np.float64]  # ... of which the thread that reads takes this
    threads: I32  # that share this work; 0 is the one thread that serves all of a rank's connections

    def __len__(self) -> int:
        return len(self.cost_ps)

    @property
    def inside_domain(self) -> npt.NDArray[np.bool_]:
        """[E] edges that no adapter carries: those inside a host, or a rack that is one NVLink domain."""
        found: npt.NDArray[np.bool_] = (self.nic_out == NONE) & (self.nic_in == NONE)
        return found


@record
class SoftwareCosts:
    """Times that a communication takes beside its bytes on wires."""

    step_ps: int = 0  # a rank's at each step: flags, reduction start, proxy
    base_ps: int = 0  # once, before the first step: launching the kernel, meeting
    chunk_ps: int = 0  # a chunk's in a channel of a tree: nothing else moves meanwhile
    copy_ps_per_byte: float = 0.0  # a tree's first chunk: getting into its buffers, before any of it moves on


@record
class Transport:
    """Paths of a communication's bytes, and the rates and bytes there."""

    wire_bytes: int = 1  # on the wire for `data_bytes` of data: flags that travel with them
    data_bytes: int = 1
    rate_share: float = 1.0  # of a wire's rate that this protocol gets inside a host or NVLink domain
    connections: Connections | None = None  # None: every edge takes the shortest path at `SoftwareCosts.step_ps`
    service_level: int | None = None  # or the priority on Ethernet; None: as the engine's options say


@record
class Communication:
    """One lowered collective or message, on one group of ranks or on several that act alike (`groups` > 1)."""

    name: str  # for people: "tp all-reduce, stage 3"
    kind: str  # all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send
    algorithm: str  # ring, tree, pairwise, message
    size_bytes: int  # of one group's buffer, as nccl-tests counts it
    groups: int
    channels: Channels  # of all groups
    costs: SoftwareCosts = SoftwareCosts()
    transport: Transport = Transport()


@record
class Label:
    """The name of an operation, and the part of the breakdown that it belongs to."""

    name: str
    category: str  # compute, optimizer, tp, pp, dp, ep, cp, other


@record
class Operations:
    """n operations as columns. `after` lists predecessors, as indices into this very table."""

    kind: I8  # [n] OpKind
    actor: I32  # [n] the actor whose time it takes; of a communication, the first that takes part
    duration_ps: I64  # [n] COMPUTE; 0 for communications
    communication: I32  # [n] into the communications posted with it; NONE for COMPUTE
    label: I16  # [n] into Program.labels
    micro_batch: I32  # [n] NONE where there is none
    after_start: I32  # [n + 1]
    after: I32  # [...]

    def __len__(self) -> int:
        return len(self.kind)


@record
class Actor:
    """Ranks that act alike. `lanes` of a timeline are actors."""

    name: str
    ranks: I32


@record
class Program:
    """A job as it runs: `ranks` ranks, folded into actors, and the graph of what they do."""

    name: str
    ranks: int
    actors: tuple[Actor, ...]
    labels: tuple[Label, ...]
    communications: tuple[Communication, ...]
    operations: Operations
    participants_start: I32  # [communications + 1] which actors take part in each communication
    participants: I32
