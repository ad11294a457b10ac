"""Prefill and decode in engines of their own, and the proxy between them.

A prompt goes to an engine that prefills, with one token to make; its blocks stay there. The proxy then sends the
request to an engine that decodes, which holds blocks for the whole prompt as soon as they are free, has the KV
moved, and goes on from the prompt's last token. The blocks of the first are freed once they were moved, or when
their lease is over; then the prompt is computed again.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from fabrictwin.base.arrays import I32
from fabrictwin.base.records import record
from fabrictwin.serving.engine.replica import NEVER, Replica
from fabrictwin.serving.network.kv_transfer import KvNetwork
from fabrictwin.serving.scheduler.request import Remote, Request
from fabrictwin.serving.scheduler.scheduler import Scheduler


@record
class Side:
    """Engines of one side, and the GPUs of each one's ranks."""

    engines: tuple[Replica, ...]
    nodes: tuple[I32, ...]

    def least_loaded(self) -> int:
        """Return the engine with the least load, the first of equals."""
        return min(range(len(self.engines)), key=lambda place: self.engines[place].load)


@record
class Handover:
    """Times between both sides, picoseconds: the proxy's, how long blocks are kept for who does not ask, and what
    the other side needs for a token of the text, which it gets as well.
    """

    proxy_ps: int
    lease_ps: int
    token_ps: int = 0


@dataclass
class _Path:
    """A request's way: where it was prefilled, until when its blocks are kept, where it decodes."""

    request: Request
    prefill: Request
    source: int
    expires_ps: int = NEVER
    target: int = -1
    moving: bool = field(default=False)


class Disaggregated:
    """Both sides under one clock."""

    def __init__(self, prefill: Side, decode: Side, network: KvNetwork, handover: Handover) -> None:
        self._prefill, self._decode, self.network, self._handover = prefill, decode, network, handover
        self.nodes = prefill.nodes, decode.nodes
        self._paths: dict[int, _Path] = {}
        self._later: list[tuple[int, int, int]] = []  # time, 0: goes to decode, 1: lease is over; request
        self.ranks = decode.engines
        self.workers = (*prefill.engines, *decode.engines)
        self.expired = 0

    @property
    def scheduler(self) -> Scheduler:
        """The first decoding engine's."""
        return self.ranks[0].scheduler

    @property
    def load(self) -> int:
        """Load of all engines."""
        return sum(worker.load for worker in self.workers)

    def cached_blocks(self, keys: list[int]) -> int:
        """Return the most that a prefilling engine has cached of a chain."""
        return max(engine.cached_blocks(keys) for engine in self._prefill.engines)

    @property
    def next_ps(self) -> int:
        """Time of the next turn, of whichever part."""
        return min(self._others_ps(), self.network.now_ps if self.network.busy else NEVER)

    def _others_ps(self) -> int:
        due = min(worker.next_ps for worker in self.workers)
        return min(due, self._later[0][0]) if self._later else due

    def send(self, request: Request, at_ps: int) -> None:
        """Send a prompt to the least loaded engine that prefills."""
        source = self._prefill.least_loaded()
        prompt = Request(
            request.number,
            request.prompt,
            1,
            arrival_ps=at_ps,
            priority=request.priority,
            keeps_blocks=True,
            key_source=request.key_source,
        )
        self._paths[request.number] = _Path(request, prompt, source)
        self._prefill.engines[source].send(prompt, at_ps)

    def act(self, until_ps: int = 0) -> tuple[int, list[Request]]:
        """Run the turn that is due first, of an engine, of the proxy or of transfers."""
        due = self._others_ps()
        most = min(due, max(until_ps, self.network.now_ps))
        through = self.network.advance(most)
        if through:
            for at_ps, number in through:
                self._moved(number, at_ps)
            return through[0][0], []
        if due > most:
            return most, []
        if self._later and self._later[0][0] == due:
            self._hand_over(*heapq.heappop(self._later))
            return due, []
        worker = next(worker for worker in self.workers if worker.next_ps == due)
        at_ps, finished = worker.act()
        if worker not in self._decode.engines:
            for request in finished:
                path = self._paths[request.number]
                path.expires_ps = at_ps + self._handover.lease_ps
                read_ps = self._handover.proxy_ps + self._handover.token_ps * request.prompt
                heapq.heappush(self._later, (at_ps + read_ps, 0, request.number))
                heapq.heappush(self._later, (path.expires_ps, 1, request.number))
            return at_ps, []
        self._start_loads(worker)
        for request in finished:
            del self._paths[request.number]
        return at_ps, finished

    def _hand_over(self, at_ps: int, lease: int, number: int) -> None:
        path = self._paths.get(number)
        if path is None:
            return
        if lease:
            if path.prefill.keeps_blocks and not path.moving:
                self._free(path, at_ps)
                self.expired += 1
            return
        path.target = self._decode.least_loaded()
        path.request.remote = Remote.WANTED
        self._decode.engines[path.target].send(path.request, at_ps)

    def _start_loads(self, worker: Replica) -> None:
        """Move what a decoding engine holds blocks for."""
        loads, worker.scheduler.loads = worker.scheduler.loads, []
        for request in loads:
            path = self._paths[request.number]
            if not path.prefill.keeps_blocks:
                worker.scheduler.load_failed(request)
                worker.wake(self.network.now_ps)
                continue
            path.moving = True
            size = worker.scheduler.cache.layout.block_size
            known = request.hit // size
            nodes = self._prefill.nodes[path.source], self._decode.nodes[path.target]
            source, target = path.prefill.blocks[0][known:], request.blocks[0][known:]
            count = min(len(source), len(target))
            self.network.start(request.number, nodes, (source[:count], target[:count]))

    def _moved(self, number: int, at_ps: int) -> None:
        path = self._paths[number]
        self._free(path, at_ps)
        worker = self._decode.engines[path.target]
        worker.scheduler.loaded(path.request)
        worker.wake(at_ps)

    def _free(self, path: _Path, at_ps: int) -> None:
        """Give up the blocks of a prompt where it was computed."""
        engine = self._prefill.engines[path.source]
        engine.scheduler.cache.free(path.prefill)
        path.prefill.keeps_blocks = False
        engine.wake(at_ps)
