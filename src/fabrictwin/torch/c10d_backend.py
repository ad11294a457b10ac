"""The c10d backend `fabrictwin`: bytes by gloo, every call recorded with its group and its size as NCCL counts it.

A subclass of c10d's `Backend` (torch/csrc/distributed/c10d/PyBackend.hpp) under the names of several releases; of
`ProcessGroup` where programs of Python cannot construct that, as up to 2.13 (PyProcessGroup.hpp). Where gloo has
no such call (reduce-scatter of lists, coalesced ones) it is made of those that it has. Averages, which gloo does
not reduce, are sums that are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from fabrictwin.base.records import record
from fabrictwin.nccl.lowering.tasks import Kind
from fabrictwin.torch import NAME
from fabrictwin.torch.call_arguments import flat, held, listed, nested, options
from fabrictwin.torch.operator_recorder import first_of, size_of
from fabrictwin.torch.rank_recorder import RankRecorder
from fabrictwin.torch.recording import LOGS, PENDING, RECORDERS, WORLDS, own_copies

_Backend: Any = torch._C._distributed_c10d.Backend
_Gloo: Any = dist.ProcessGroupGloo


def _constructible() -> bool:
    try:
        _Backend(0, 1)
    except TypeError:  # of pybind11, for a class without a constructor
        return False
    return True


IS_BACKEND = _constructible()


@record
class Posted:
    """A call that was recorded: its number there, and what the log calls it."""

    number: int
    logged: str | None


@contextmanager
def _waiting(posted: Posted | None) -> Iterator[None]:
    """Let the log know that this rank waits."""
    if posted is None or posted.logged is None or not LOGS:
        yield
    else:
        with LOGS[0].waiting(posted.logged):
            yield


class RecordedWork(dist.Work):  # type: ignore[misc]
    """Handle of a call: gloo's, and what the recorder knows of it."""

    def __init__(self, inner: Any, result: Any, posted: Posted | None, finish: Callable[[], None] | None) -> None:
        super().__init__()
        self._inner, self._value, self._posted, self._finish = inner, result, posted, finish
        self._future: Any = None
        if inner is not None:
            PENDING[id(self)] = self._arrived

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the bytes, and let what follows wait for the modelled call."""
        self._arrived(timeout)
        if self._posted is not None and RECORDERS:
            RECORDERS[0].waited(self._posted.number)
        return True

    def _arrived(self, timeout: timedelta = timedelta(0)) -> None:
        """Wait for the bytes, and do what gloo leaves to be done, once."""
        if self._inner is not None:
            with _waiting(self._posted):
                self._inner.wait() if not timeout else self._inner.wait(timeout)
        self._inner = None
        PENDING.pop(id(self), None)
        if self._finish is not None:
            with own_copies():
                self._finish()
            self._finish = None

    def is_completed(self) -> bool:
        """Return true where the bytes are there."""
        return self._inner is None or bool(self._inner.is_completed())

    def is_success(self) -> bool:
        """Return true: what fails raises in `wait`."""
        return True

    def exception(self) -> None:
        """Return nothing: what fails raises in `wait`."""

    def result(self) -> Any:
        """Return the tensors."""
        return self._value

    def get_future(self) -> Any:
        """Return a future of the tensors, done once the bytes are there."""
        if self._future is None:
            self._future = torch.futures.Future()
            self._arrived()  # gloo's own futures do not exist for every call
            self._future.set_result(self._value)
        return self._future


class AnySourceWork(RecordedWork):
    """Handle of a receive from whoever sends first: recorded once it is known from whom."""

    def __init__(self, inner: Any, tensors: Any, received: Callable[[int], Posted | None]) -> None:
        super().__init__(inner, tensors, None, None)
        self._gloos = inner
        self._received: Callable[[int], Posted | None] | None = received

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the bytes, and let what follows wait for the modelled message."""
        if self._received is not None:
            self._arrived(timeout)
            self._posted, self._received = self._received(self._source_rank()), None
        return super().wait()

    def _source_rank(self) -> int:
        return int(self._gloos._source_rank())


def _at_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let a call that its program does not make asynchronous end before it returns, as on NCCL's current stream.

    c10d's dispatcher splits calls on wrapped tensors, and hands out the handle of the first part alone.
    """

    @wraps(call)
    def run(self: Any, *args: Any, **named: Any) -> Any:
        work = call(self, *args, **named)
        if any(getattr(each, "asyncOp", True) is False for each in (*args, *named.values())):
            work.wait()
        return work

    return run


class FabrictwinBackend(_Backend if IS_BACKEND else dist.ProcessGroup):  # type: ignore[misc]
    """One group's calls."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = _Gloo(dist.PrefixStore(f"fabrictwin/{WORLDS[0]}/", store), rank, size, timeout)
        if not IS_BACKEND:  # what is not a call is asked of a group's backend
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)
        self._sequence, self._timeout = 0, timeout
        self._key: str | None = None
        self.called = NAME  # by the program: another backend's name where this one takes its place

    # ------------------------------------------------------------------ what c10d asks

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name."""
        return self.called

    def name(self) -> str:
        """Return the name."""
        return self.called

    @property
    def options(self) -> Any:
        """Return gloo's options, whose time is that of this group."""
        return self._gloo.options

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._gloo._set_default_timeout(timeout)
        self._timeout = timeout

    @property
    def supports_splitting(self) -> bool:
        """Return false: sub-groups rendezvous anew."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """Return false: calls of a batch are made one by one."""
        return False

    def setSequenceNumberForGroup(self) -> None:  # noqa: N802
        """Begin the count of calls, which needs nothing from others."""

    _set_sequence_number_for_group = setSequenceNumberForGroup

    def getSequenceNumberForGroup(self) -> int:  # noqa: N802
        """Return the number of calls so far."""
        return self._sequence

    def shutdown(self) -> None:
        """Leave gloo to its own end."""

    abort = shutdown

    # ------------------------------------------------------------------ recording

    def _group(self, recorder: RankRecorder) -> str:
        """The key of this group, which the recorder and the log are told of once."""
        if self._key is None:
            self._key, members, description = self._members(recorder)
            recorder.group(self._key, members, description)
            for log in LOGS:
                log.group(self._key, members)
        return self._key

    def _members(self, recorder: RankRecorder) -> tuple[str, tuple[int, ...], str]:
        """(key, ranks, description) by the group of c10d that holds this backend.

        One that a program made without c10d's knowledge holds every rank. Raises RuntimeError where it cannot.
        """
        for group, ranks in c10d._world.pg_group_ranks.items():
            if not isinstance(group, dist.ProcessGroup):  # c10d's number for groups without this rank
                continue
            backends = [group._get_backend(device) for device in group._device_types]
            if any(one is self for one in (group, *backends)):
                name = recorder.key(c10d._world.pg_names.get(group, ""))
                members = tuple(sorted(ranks, key=ranks.__getitem__))
                return name, members, str(getattr(group, "group_desc", ""))
        if (self.rank(), self.size()) != (recorder.trace.rank, recorder.trace.world):
            raise RuntimeError("fabrictwin: a call on a group that c10d does not know, expected dist.new_group")
        return f"made apart {len(recorder.trace.groups)}", tuple(range(self.size())), ""

    def _recorded(
        self, kind: Kind, size: int, like: torch.Tensor | None, root: int = 0, *, uneven: bool = False
    ) -> Posted | None:
        """Record a call of `size` bytes of elements like those of a tensor; `uneven`: ranks may differ in it."""
        self._sequence += 1
        if not RECORDERS:
            return None
        recorder, element = RECORDERS[0], 4 if like is None else like.element_size()
        key, logged = self._group(recorder), None
        for log in LOGS:
            dtype = "" if like is None else str(like.dtype).removeprefix("torch.")
            name = kind if like is not None else "barrier"
            logged = log.call(key, name, None if uneven else size, dtype, root)
        whole = max(size // element, 1) * element
        return Posted(recorder.collective(kind, key, whole, element_bytes=element, root=root), logged)

    def _message(self, tensors: Sequence[torch.Tensor], peer: int, tag: int, *, sends: bool) -> Posted | None:
        if not RECORDERS:
            return None
        recorder, logged = RECORDERS[0], None
        rank = recorder.trace.groups[self._group(recorder)][0][peer]
        for log in LOGS:
            logged = log.message(rank, tag, sends=sends)
        return Posted(recorder.message(sends=sends, peer=rank, size_bytes=size_of(tensors), tag=tag), logged)

    @staticmethod
    def _summed(opts: Any) -> bool:
        """Return true for an average, which becomes a sum in `opts`."""
        if opts is not None and opts.reduceOp == dist.ReduceOp.AVG:
            opts.reduceOp = dist.ReduceOp.SUM
            return True
        return False

    @staticmethod
    def _scaled(opts: Any, tensors: Any) -> Any:
        """Return tensors that this rank scales before their sum, as copies; a plain sum is left in `opts`.

        Others are returned as they are. NCCL scales inside of its kernel (ncclRedOpCreatePreMulSum).
        """
        if opts.reduceOp != dist.ReduceOp.PREMUL_SUM:
            return tensors
        factor = opts.reduceOp.__getstate__()[1]
        opts.reduceOp = dist.ReduceOp.SUM
        with own_copies():
            return [one * factor for one in tensors]

    def _divide(self, tensors: Any) -> Callable[[], None]:
        def divide() -> None:
            for one in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
                one.div_(self.size())

        return divide

    @staticmethod
    def _copy(tensors: Any, reduced: Any) -> Callable[[], None]:
        def copy() -> None:
            for one, other in zip(tensors, reduced, strict=True):
                one.copy_(other)

        return copy

    @staticmethod
    def _all_of(works: Sequence[Any]) -> Callable[[], None]:
        def wait() -> None:
            for one in works:
                one.wait()

        return wait

    # ------------------------------------------------------------------ collectives

    @_at_once
    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None) -> Any:
        """Reduce onto every rank."""
        tensors, opts = listed(tensors), options("AllreduceOptions", opts, op=op, timeout=timeout)
        if not tensors:
            return self._gloo.allreduce(tensors, opts)  # which says what is wrong
        parts = held(tensors)
        if parts is not tensors:
            each = [self.allreduce(one, op=opts.reduceOp, timeout=opts.timeout) for one in parts]
            return RecordedWork(None, tensors, None, self._all_of(each))
        posted = self._recorded("all_reduce", size_of(tensors), first_of(tensors))
        finish = self._divide(tensors) if self._summed(opts) else None
        scaled = self._scaled(opts, tensors)
        finish = finish if scaled is tensors else self._copy(tensors, scaled)
        return RecordedWork(self._gloo.allreduce(scaled, opts), tensors, posted, finish)

    @_at_once
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce several tensors onto every rank, as one call."""
        opts = options("AllreduceCoalescedOptions", opts)
        if not tensors:
            return self._gloo.allreduce_coalesced(tensors, opts)  # which says what is wrong
        posted = self._recorded("all_reduce", size_of(tensors), first_of(tensors))
        finish = self._divide(tensors) if self._summed(opts) else None
        return RecordedWork(self._gloo.allreduce_coalesced(tensors, opts), tensors, posted, finish)

    @_at_once
    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: Any = None) -> Any:
        """Copy from the root."""
        tensors, opts = listed(tensors), options("BroadcastOptions", opts, root=root, timeout=timeout)
        if not tensors:
            return self._gloo.broadcast(tensors, opts)  # which says what is wrong
        parts = held(tensors)
        if parts is not tensors:
            each = [self.broadcast(one, root=opts.rootRank, timeout=opts.timeout) for one in parts]
            return RecordedWork(None, tensors, None, self._all_of(each))
        posted = self._recorded("broadcast", size_of(tensors), first_of(tensors), opts.rootRank)
        return RecordedWork(self._gloo.broadcast(tensors, opts), tensors, posted, None)

    @_at_once
    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, *, root: Any = None
    ) -> Any:
        """Reduce onto the root."""
        tensors, opts = listed(tensors), options("ReduceOptions", opts, op=op, root=root, timeout=timeout)
        if not tensors:
            return self._gloo.reduce(tensors, opts)  # which says what is wrong
        posted = self._recorded("reduce", size_of(tensors), first_of(tensors), opts.rootRank)
        finish = self._divide(tensors) if self._summed(opts) and self.rank() == opts.rootRank else None
        scaled = self._scaled(opts, tensors)
        if scaled is not tensors and self.rank() == opts.rootRank:
            finish = self._copy(tensors, scaled)
        return RecordedWork(self._gloo.reduce(scaled, opts), tensors, posted, finish)

    @_at_once
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *, timeout: Any = None) -> Any:
        """Gather every rank's tensor into lists."""
        outputs, inputs = nested(outputs), listed(inputs)
        opts = options("AllgatherOptions", opts, timeout=timeout)
        if not inputs:
            return self._gloo.allgather(outputs, inputs, opts)  # which says what is wrong
        posted = self._recorded("all_gather", size_of(inputs) * self.size(), first_of(inputs), uneven=True)
        return RecordedWork(self._gloo.allgather(outputs, inputs, opts), flat(outputs), posted, None)

    @_at_once
    def _allgather_base(self, output: Any, source: Any, opts: Any = None) -> Any:
        posted = self._recorded("all_gather", size_of(output), source)
        parts = [list(output.view(-1).chunk(self.size()))]
        return RecordedWork(self._gloo.allgather(parts, [source.reshape(-1)]), output, posted, None)

    @_at_once
    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather several tensors."""
        for output, source in zip(outputs, inputs, strict=True):
            work = self._allgather_base(output, source)
            work.wait()
        return RecordedWork(None, outputs, None, None)

    @_at_once
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> Any:
        """Reduce lists of tensors, each rank keeping its own."""
        outputs, inputs = listed(outputs), nested(inputs)
        with own_copies():
            parts = torch.cat([one.reshape(-1) for one in flat(inputs)])
        opts = options("ReduceScatterOptions", opts, op=op, timeout=timeout)
        return self._reduce_scatter_base(outputs[0], parts, opts)

    @_at_once
    def _reduce_scatter_base(self, output: Any, source: Any, opts: Any = None) -> Any:
        posted = self._recorded("reduce_scatter", size_of(source), source)
        reduced = options("AllreduceOptions", None, op=None if opts is None else opts.reduceOp)
        average = self._summed(reduced)
        with own_copies():
            whole = source.reshape(-1).clone()
        [whole] = self._scaled(reduced, [whole])

        def keep() -> None:
            own = whole.chunk(self.size())[self.rank()].view_as(output)
            output.copy_(own / self.size() if average else own)

        return RecordedWork(self._gloo.allreduce([whole], reduced), output, posted, keep)

    @_at_once
    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce several tensors, each rank keeping its own part."""
        for output, source in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, source, opts).wait()
        return RecordedWork(None, outputs, None, None)

    @_at_once
    def alltoall_base(self, output: Any, source: Any, out_sizes: Any, in_sizes: Any, opts: Any = None) -> Any:
        """Exchange parts of a tensor."""
        posted = self._recorded("all_to_all", size_of(source), source, uneven=True)
        opts = options("AllToAllOptions", opts)
        return RecordedWork(
            self._gloo.alltoall_base(output, source, out_sizes, in_sizes, opts), output, posted, None
        )

    @_at_once
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Exchange lists of tensors."""
        posted = self._recorded("all_to_all", size_of(inputs), first_of(inputs), uneven=True)
        out_sizes, in_sizes = ([one.numel() for one in each] for each in (outputs, inputs))
        with own_copies():
            joined = torch.cat([one.reshape(-1) for one in inputs])
            received = joined.new_empty(sum(out_sizes))

        def spread() -> None:
            for one, part in zip(outputs, received.split(out_sizes), strict=True):
                one.copy_(part.view_as(one))

        inner = self._gloo.alltoall_base(received, joined, out_sizes, in_sizes, dist.AllToAllOptions())
        return RecordedWork(inner, outputs, posted, spread)

    @_at_once
    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: Any = None) -> Any:
        """Gather onto the root."""
        outputs, inputs = nested(outputs), listed(inputs)
        opts, size = options("GatherOptions", opts, root=root, timeout=timeout), size_of(inputs) * self.size()
        if not inputs:
            return self._gloo.gather(outputs, inputs, opts)  # which says what is wrong
        posted = self._recorded("gather", size, first_of(inputs), opts.rootRank)
        return RecordedWork(self._gloo.gather(outputs, inputs, opts), flat(outputs), posted, None)

    @_at_once
    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, *, root: Any = None
    ) -> Any:
        """Send parts from the root."""
        outputs, inputs = listed(outputs), nested(inputs)
        opts, size = options("ScatterOptions", opts, root=root, timeout=timeout), size_of(outputs) * self.size()
        if not outputs:
            return self._gloo.scatter(outputs, inputs, opts)  # which says what is wrong
        parts = held(outputs)
        if parts is not outputs:
            given = [held([one]) for one in flat(inputs)] if inputs else []
            each = [
                self.scatter(one, [mine[k] for mine in given], root=opts.rootRank, timeout=opts.timeout)
                for k, one in enumerate(parts)
            ]
            return RecordedWork(None, outputs, None, self._all_of(each))
        posted = self._recorded("scatter", size, first_of(outputs), opts.rootRank)
        return RecordedWork(self._gloo.scatter(outputs, inputs, opts), outputs, posted, None)

    @_at_once
    def barrier(self, opts: Any = None, *, timeout: Any = None) -> Any:
        """Meet: an all-reduce of one element, as in ProcessGroupNCCL."""
        posted = self._recorded("all_reduce", 4, None)
        inner = self._gloo.barrier(options("BarrierOptions", opts, timeout=timeout))
        return RecordedWork(inner, None, posted, None)

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Any:
        """Send to a rank of the group."""
        posted = self._message(tensors, destination, tag, sends=True)
        return RecordedWork(self._gloo.send(tensors, destination, tag), tensors, posted, None)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        """Receive from a rank of the group."""
        posted = self._message(tensors, source, tag, sends=False)
        return RecordedWork(self._gloo.recv(tensors, source, tag), tensors, posted, None)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive from whoever sends first."""
        inner = self._gloo.recv_anysource(tensors, tag)
        return AnySourceWork(inner, tensors, lambda peer: self._message(tensors, peer, tag, sends=False))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Meet, or raise RuntimeError naming who did not come within the time."""
        posted = self._recorded("all_reduce", 4, None)
        self._gloo.monitored_barrier(self._timeout if timeout is None else timeout, wait_all_ranks)
        RecordedWork(None, None, posted, None).wait()

    # names of later releases
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


def backend_of(group: Any) -> FabrictwinBackend:
    """Return the backend of a group: the group itself where releases let programs make no other."""
    found = group if isinstance(group, FabrictwinBackend) else group._get_backend(torch.device("cpu"))
    assert isinstance(found, FabrictwinBackend)
    return found
