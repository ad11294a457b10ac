"""KV of prompts from engines that prefill to engines that decode, on the twin's links.

Every pair of ranks that hold the same heads has a connection of its own from the one's GPU to the other's, by the
adapters and routes between them; messages of all transfers share links as fluid (the flow engine). `nixl`: the
decoding rank reads, a descriptor for each layer's keys or values and block (`kv_connector/v1/nixl`), of which
NIXL joins those that follow each other on both sides (`nixl_agent.cpp`, `makeXferReq`; vLLM leaves that on).
`mooncake`: the prefilling rank writes; such blocks are joined as well (`mooncake_connector`), and cut into slices
of 64 KiB (Mooncake's transfer engine), a tail of up to 16 KiB with the one before it. Where ranks of one side
hold more heads than those of the other, what is sent is a part of each block, and nothing follows on. A
connection moves no more descriptors a second than the adapter's queue pair. All layers go at once, when the whole
prompt is there. Ranks of one host: `nixl` copies over NVLink (UCX's cuda_ipc); `mooncake` goes through their
adapters all the same: its engine takes the transport that the other side registered with (`multi_transport.cpp`,
`selectTransport`).

Mooncake's engine cuts and places all slices of a call before it posts the first one (`rdma_transport.cpp`,
`submitTransferTask`), so that this time comes before the adapter's. It was measured with the engine's own wheel
(0.3.7.post2) above an adapter that completes at once, on an EPYC virtual machine, over 1 to 144 regions and 1 to
1,152 slices, with cold caches, as after the work between two transfers (warm: 12, 0.6 and 0.155 us). Hosts with
slower or busier cores take longer. The threads that post stay awake for 100 ms once woken, then sleep
(`worker_pool.cpp`, `transferWorker`): a call that finds them asleep wakes them, on a core that idles as deep as
Linux lets it. That takes what the processor needs to come back (`idle_exit` of the catalog), or where that is not
known what it took on that virtual machine, the 68 us by which its call was slower cold than warm.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Literal

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S, PS_PER_US
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.messages import EventKind, FlowOptions, Message, Opcode, Posting
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.serving.network.exchange import exchange
from fabrictwin.serving.network.kv_adapters import adapter_pairs, drawn_slices
from fabrictwin.serving.network.link_load import ALONE, FOREVER, Neighbourhood
from fabrictwin.twin.twin import Twin

Connector = Literal["nixl", "mooncake"]
SLICE_BYTES = 65536
TAIL_BYTES = 16384
CALL_US, REQUEST_US, SLICE_US = 12.0, 1.4, 0.165
"""What Mooncake's engine takes for a call, each of its requests and each of their slices, before it posts."""
AWAKE_PS, WAKE_PS = 100_000 * PS_PER_US, 68 * PS_PER_US
"""How long its posting threads stay awake once woken, and what it takes to wake them in a virtual machine."""
Event = tuple[int, int]
"""When a transfer is through, and its number."""


@record
class KvLayout:
    """KV of one block on a decoding rank, and how ranks of both sides share it.

    Attributes:
        regions: Keys and values of all layers, which lie apart.
        block_bytes: Of one region and block on a decoding rank.
        pairs: Ranks that a transfer goes between: (prefilling, decoding).
        whole: Blocks of both sides are sent whole, not parts of larger ones.
    """

    regions: int
    block_bytes: float
    pairs: tuple[tuple[int, int], ...]
    whole: bool = True

    @property
    def pair_bytes(self) -> float:
        """Bytes of one region and block that go between one pair."""
        return self.block_bytes * (max(decode for _, decode in self.pairs) + 1) / len(self.pairs)


def rank_pairs(prefill: int, decode: int, kv_heads: int) -> tuple[tuple[int, int], ...]:
    """Return which ranks of `prefill` send to which of `decode`; 0 heads: every rank holds all (latent KV)."""
    if not kv_heads:
        return tuple((rank * prefill // decode, rank) for rank in range(decode))
    count = decode * max(1, min(prefill, kv_heads) // min(decode, kv_heads))
    return tuple((place * prefill // count, place * decode // count) for place in range(count))


def runs(source: list[int], target: list[int]) -> int:
    """Return how many runs of blocks follow each other on both sides."""
    if not source:
        return 0
    steps = (np.diff(source) == 1) & (np.diff(target) == 1)
    return len(source) - int(steps.sum())


@record
class Descriptors:
    """What a connection posts for a transfer.

    Attributes:
        size: Bytes of all.
        piece: Bytes of one.
        prepare_ps: What the host does before it posts the first.
        requests, slices: How many requests of how many pieces, where these may take different adapters.
    """

    size: int
    piece: float
    prepare_ps: int = 0
    requests: int = 1
    slices: int = 1

    @classmethod
    def nixl(cls, layout: KvLayout, blocks: int, parts: int) -> Descriptors:
        """Return one for each region and run of blocks, of `parts` runs."""
        size = max(1, round(layout.pair_bytes * layout.regions * blocks))
        return cls(size, layout.pair_bytes * blocks / max(parts, 1))

    @classmethod
    def mooncake(cls, layout: KvLayout, blocks: int, parts: int, *, wake_ps: int = 0) -> Descriptors:
        """Return slices of `parts` runs of blocks in each region, posted by threads that wake in `wake_ps`."""
        request = layout.pair_bytes * blocks / max(parts, 1)
        slices = max(1, ceil((request - TAIL_BYTES) / SLICE_BYTES))
        host_us = CALL_US + layout.regions * parts * (REQUEST_US + slices * SLICE_US)
        size = max(1, round(layout.pair_bytes * layout.regions * blocks))
        piece, prepare_ps = request if slices == 1 else SLICE_BYTES, wake_ps + round(host_us * PS_PER_US)
        return cls(size, piece, prepare_ps, layout.regions * parts, slices)


class KvNetwork:
    """Transfers under way. `advance` tells which are through; time only advances."""

    def __init__(
        self,
        twin: Twin,
        connector: Connector,
        layout: KvLayout,
        *,
        host_ps: int = 0,
        wake_ps: int = WAKE_PS,
        neighbours: Neighbourhood = ALONE,
    ) -> None:
        self._twin, self._connector, self.layout, self._host_ps = twin, connector, layout, host_ps
        self._wake_ps = wake_ps
        self._woken: dict[int, int] = {}
        self._neighbours = neighbours
        self._slowed: dict[int, int] = {}
        self._change_ps = 0 if neighbours else FOREVER
        self._engine = twin.start_engine("flow")
        self._finder = PathFinder(twin.fabric, twin.routes)
        self._flows: dict[tuple[int, ...], int] = {}
        self._adapters: dict[tuple[int, int], tuple[I32, I32]] = {}
        self._near: dict[tuple[int, int], tuple[float, float]] = {}
        self._left: dict[int, int] = {}
        self._of_message: dict[int, int] = {}
        self._local: list[Event] = []
        self.moved_bytes = 0.0

    @property
    def copies(self) -> bool:
        """Ranks of one host copy inside it."""
        return self._connector == "nixl"

    @property
    def busy(self) -> bool:
        """Something is under way."""
        return bool(self._left)

    @property
    def now_ps(self) -> int:
        """Return how far time has come, picoseconds."""
        return self._engine.now_ps

    def start(self, number: int, nodes: tuple[I32, I32], blocks: tuple[list[int], list[int]]) -> None:
        """Begin to move blocks from ranks of one engine to those of another, now."""
        source, target = blocks
        layout = self.layout
        parts = runs(source, target) if layout.whole else len(source)
        if self.copies:
            posted = Descriptors.nixl(layout, len(source), parts)
        else:
            wake_ps = self._wake(int(nodes[0][0]))
            posted = Descriptors.mooncake(layout, len(source), parts, wake_ps=wake_ps)
        self._left[number] = 0
        host = self._twin.fabric.node_host
        for prefill, decode in layout.pairs:
            ends = int(nodes[0][prefill]), int(nodes[1][decode])
            self.moved_bytes += posted.size
            if self.copies and host[ends[0]] == host[ends[1]]:
                self._copy(number, ends, posted.size)
            else:
                self._post(number, ends, posted)

    def _wake(self, engine: int) -> int:
        """Return what it takes to wake the posting threads of an engine's ranks, told by its first GPU."""
        now = self.now_ps
        if now - self._woken.get(engine, -AWAKE_PS) < AWAKE_PS:
            return 0
        self._woken[engine] = now
        return self._wake_ps

    def _copy(self, number: int, ends: tuple[int, int], size: int) -> None:
        if ends not in self._near:
            way = exchange(self._twin, np.array(ends[:1], np.int32), np.array(ends[1:], np.int32))
            self._near[ends] = way.us_per_byte, way.latency_us
        per_byte, latency = self._near[ends]
        took = round((latency + per_byte * size) * PS_PER_US)
        self._local.append((self.now_ps + self._host_ps + took, number))
        self._local.sort()
        self._left[number] += 1

    def _post(self, number: int, ends: tuple[int, int], posted: Descriptors) -> None:
        """Send what is posted between two GPUs, each part by the adapters that it takes."""
        if ends not in self._adapters:
            sides = np.array(ends[:1], np.int32), np.array(ends[1:], np.int32)
            find = self._finder
            self._adapters[ends] = find.adapters_between(*sides) if self.copies else adapter_pairs(find, *ends)
        pairs = self._adapters[ends]
        taken = drawn_slices(pairs, posted.requests, posted.slices, (number, *ends))
        ended = np.rint(posted.size * np.cumsum(taken) / taken.sum()).astype(np.int64)
        for place, size in enumerate(np.diff(ended, prepend=0).tolist()):
            if size:
                self._send(number, ends, (int(pairs[0][place]), int(pairs[1][place])), replace(posted, size=size))

    def _send(self, number: int, ends: tuple[int, int], pair: tuple[int, int], posted: Descriptors) -> None:
        fabric, engine = self._twin.fabric, self._engine
        poster = pair[1] if self._connector == "nixl" else pair[0]
        message_ps = int(fabric.nic_qp_message_ps[poster])
        rate = round(posted.piece * 8 * PS_PER_S / message_ps) if message_ps else 0
        if rate >= fabric.port_rate_bps[fabric.nic_port[poster]]:
            rate = 0  # the link bounds such pieces, whatever their size
        key = (*ends, *pair, rate)
        if key not in self._flows:
            self._flows[key] = engine.open(*pair, ends, FlowOptions(rate_bps=rate or None))
        posting = Posting(later_ps=self._host_ps + posted.prepare_ps)
        message = engine.send(self._flows[key], Message(posted.size, Opcode.WRITE, posting=posting))
        self._of_message[message] = number
        self._left[number] += 1

    def _change_rates(self) -> None:
        """Let links run at the rates that neighbours leave from now on."""
        now, fabric = self.now_ps, self._twin.fabric
        rates = self._neighbours.rates(self._twin, self._neighbours.phase(now))
        for port in sorted(self._slowed.keys() | rates.keys()):
            built = self._twin.link_rate_bps.get(port, int(fabric.port_rate_bps[port]))
            rate = rates.get(port, built)
            if rate != self._slowed.get(port, built):
                self._engine.change(TimedChange(now, port, rate))
        self._slowed = rates
        self._change_ps = self._neighbours.next_ps(now)

    def advance(self, until_ps: int) -> list[Event]:
        """Run up to `until_ps`, or to the first instant at which transfers are through; returns these."""
        while True:
            if self.now_ps >= self._change_ps:
                self._change_rates()
            first = self._local[0][0] if self._local else until_ps
            found = self._engine.advance(min(until_ps, first, self._change_ps))
            done = [
                (event.time_ps, self._of_message.pop(event.message))
                for event in found.events
                if event.kind == EventKind.ENDED
            ]
            while self._local and self._local[0][0] <= self.now_ps:
                done.append(self._local.pop(0))
            ended = []
            for time_ps, number in done:
                self._left[number] -= 1
                if not self._left[number]:
                    del self._left[number]
                    ended.append((time_ps, number))
            if ended or self.now_ps >= until_ps or not (self._left or self._local):
                return ended
