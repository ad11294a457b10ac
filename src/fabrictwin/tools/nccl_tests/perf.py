"""nccl-tests on the twin: its sizes, its arithmetic, one row a size.

`all_reduce_perf` and the like measure one collective at growing sizes (NVIDIA/nccl-tests, src/*.cu and
doc/PERFORMANCE.md). A row's time is that of one operation by itself, from the call on all ranks to the last byte:
the twin does everything the same each time, so warm-up and iterations change nothing, and in place takes what out
of place takes. Left out: aggregated and graph launches, registration, per-iteration timing, MPI splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.capabilities import capabilities_of
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.calibration_file import CollectiveCorrections
from fabrictwin.cluster.spec.packet_section import Packet
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.nccl.communicator.communicator import Communicator, initialise
from fabrictwin.nccl.constants import ELEMENT_BYTES, REDUCTIONS
from fabrictwin.nccl.lowering.queue_pair_options import packet_options
from fabrictwin.nccl.lowering.tasks import COLLECTIVE, Kind, Task
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.topology.net_devices import SOCKET
from fabrictwin.nccl.tuning.tuner import Call, Choice, Tuner

GIB = 1 << 30
MOST_ROWS = 10_000


@record
class Test:
    """One of nccl-tests' programs."""

    program: str
    kind: Kind
    function: str  # NCCL's name of what it calls
    blocks: bool = False  # the size is that of all ranks' blocks
    reduces: bool = False
    rooted: bool = False

    def bus_factor(self, ranks: int) -> float:
        """Bus bandwidth of an algorithm bandwidth (doc/PERFORMANCE.md)."""
        if self.kind == "all_reduce":
            return 2 * (ranks - 1) / ranks
        return (ranks - 1) / ranks if self.blocks else 1.0


TESTS = {
    test.program: test
    for test in (
        Test("all_reduce_perf", "all_reduce", "AllReduce", reduces=True),
        Test("all_gather_perf", "all_gather", "AllGather", blocks=True),
        Test("reduce_scatter_perf", "reduce_scatter", "ReduceScatter", blocks=True, reduces=True),
        Test("alltoall_perf", "all_to_all", "AlltoAll", blocks=True),
        Test("broadcast_perf", "broadcast", "Broadcast", rooted=True),
        Test("reduce_perf", "reduce", "Reduce", reduces=True, rooted=True),
        Test("sendrecv_perf", "send_recv", "SendRecv", reduces=True),
    )
}


@record
class Options:
    """The options of the command line, with nccl-tests' defaults."""

    test: Test
    min_bytes: int = 32 << 20
    max_bytes: int = 32 << 20
    step_bytes: int = 1 << 20
    step_factor: int = 1
    iterations: int = 20
    warmup: int = 1
    threads: int = 1
    gpus: int = 1
    check: int = 1
    datatype: str = "float"
    operation: str = "sum"
    root: int = 0
    cycles: int = 1

    def __post_init__(self) -> None:
        if self.min_bytes > self.max_bytes:
            raise ConfigError(f"got {self.min_bytes} bytes, expected at most -e: {self.max_bytes} bytes", key="-b")
        if self.step_factor <= 1 and self.step_bytes < 1:
            raise ConfigError("got no step, expected at least one byte, or a factor -f above 1", key="-i")
        for key, value, known in (
            ("-d", self.datatype, (*ELEMENT_BYTES, "all")),
            ("-o", self.operation, (*REDUCTIONS, "all")),
        ):
            if value not in known:
                raise ConfigError(
                    f"got {value!r}, expected one of {', '.join(known)}{did_you_mean(value, known)}", key=key
                )

    def sizes(self) -> list[int]:
        """Bytes of each row. Raises ConfigError for more rows than anyone reads."""
        found, size = [], self.min_bytes
        while size <= self.max_bytes:
            found.append(size)
            if len(found) > MOST_ROWS:
                raise ConfigError(f"got more than {MOST_ROWS} sizes, expected a wider step", key="-i")
            size = size * self.step_factor if self.step_factor > 1 and size else size + max(self.step_bytes, 1)
        return found


def parse_size(text: str) -> int:
    """nccl-tests' sizes: a number and K, M or G, powers of 1024. Raises ConfigError."""
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{0,18})?)\s*([kKmMgG]?)[iI]?[bB]?\s*", text)
    if found is None:
        raise ConfigError(f"got {text[:40]!r}, expected a size such as 8, 64K or 16G")
    size = int(float(found[1]) * 1024 ** ("kmg".index(found[2].lower()) + 1 if found[2] else 0))
    if size > 1 << 50:
        raise ConfigError(f"got {text.strip()}, expected at most 1024 TiB")
    return size


@record
class Row:
    """One size. `wrong` is None where data was not checked."""

    size_bytes: int
    count: int
    datatype: str
    operation: str
    root: int
    time_ps: int
    alg_gbps: float
    bus_gbps: float
    choice: Choice | None = None  # sends have none
    wrong: int | None = None


@record
class Plan:
    """Rows before they are timed."""

    task: Task | None  # none for no bytes
    call: Call | None
    choice: Choice | None
    count: int
    datatype: str
    operation: str
    root: int


@dataclass
class Run:
    """A test on a communicator."""

    options: Options
    communicator: Communicator
    tuner: Tuner
    packet: PacketOptions = field(default_factory=PacketOptions)  # what the packet engine is to model
    corrections: CollectiveCorrections | None = None  # of a calibration
    plans: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plans = list(self._plans())

    @property
    def ranks(self) -> int:
        return self.communicator.ranks

    def _plans(self) -> Iterator[Plan]:
        options, test = self.options, self.options.test
        datatypes = tuple(ELEMENT_BYTES) if options.datatype == "all" else (options.datatype,)
        operations = REDUCTIONS if options.operation == "all" else (options.operation,)
        roots = range(self.ranks) if options.root == -1 else (options.root,)
        if test.rooted and not 0 <= options.root < self.ranks and options.root != -1:
            raise ConfigError(
                f"got {options.root}, expected a rank from 0 to {self.ranks - 1}, or -1 for all", key="-r"
            )
        for datatype in datatypes:
            for operation in operations if test.reduces else ("none",):
                for root in roots if test.rooted else (-1,):
                    for size in options.sizes():
                        yield self._plan(size, datatype, operation, root)

    def planned(self, size_bytes: int) -> Plan:
        """Return the plan of one size, in the first datatype and operation that were asked for."""
        first = self.plans[0]
        return self._plan(size_bytes, first.datatype, first.operation, first.root)

    def _plan(self, size: int, datatype: str, operation: str, root: int) -> Plan:
        test, element = self.options.test, ELEMENT_BYTES[datatype]
        count = size // element
        if test.blocks:
            # blocks begin at multiples of 16 bytes
            count = count // self.ranks // max(1, 16 // element) * max(1, 16 // element)
        whole = count * element * (self.ranks if test.blocks else 1)
        if not whole:
            return Plan(None, None, None, count, datatype, operation, root)
        task = Task(test.kind, whole, element_bytes=element, root=max(root, 0))
        call = choice = None
        if test.kind in COLLECTIVE:
            call = Call(COLLECTIVE[test.kind], whole, datatype, operation if test.reduces else "sum")
            choice = self.tuner.choose(call)
        return Plan(task, call, choice, count, datatype, operation, root)

    def time(self, fidelity: str, **rest: Any) -> list[int]:
        """Time in ps that one operation of each plan takes. Raises ConfigError."""
        from fabrictwin.nccl.lowering.task_times import measure
        from fabrictwin.nccl.tuning.step_costs import calibration

        asked = [(plan.task, plan.choice) for plan in self.plans if plan.task is not None]
        if self.ranks == 1 or not asked:
            return [0] * len(self.plans)
        # rows that are alike are played once
        distinct = list(dict.fromkeys(asked))
        if capabilities_of(fidelity).packets:
            rest.setdefault("packet", self.packet)
        rest.setdefault("costs", calibration().of(self.communicator).corrected(self.corrections))
        measured = measure(self.communicator, distinct, fidelity=fidelity, **rest)  # type: ignore[arg-type]
        taken = dict(zip(distinct, (int(each) for each in measured), strict=True))
        return [0 if plan.task is None else taken[plan.task, plan.choice] for plan in self.plans]

    def row(self, plan: Plan, time_ps: int, wrong: int | None) -> Row:
        size = 0 if plan.task is None else plan.task.size_bytes
        rate = size / (time_ps / PS_PER_S) / 1e9 if time_ps else 0.0
        return Row(
            size_bytes=size,
            count=plan.count,
            datatype=plan.datatype,
            operation=plan.operation,
            root=plan.root,
            time_ps=time_ps,
            alg_gbps=rate,
            bus_gbps=rate * self.options.test.bus_factor(self.ranks),
            choice=plan.choice,
            wrong=wrong,
        )


def average_bus_gbps(rows: Sequence[Row]) -> float:
    """Mean bus bandwidth of all rows in GB/s, as in nccl-tests' last line: large and small sizes count alike."""
    return float(np.mean([row.bus_gbps for row in rows])) if rows else 0.0


def ranks_of(twin: Any, *, gpus_per_process: int, hosts: int | None, processes: int | None) -> np.ndarray:
    """The GPUs that processes of so many GPUs each take, host after host. Raises ConfigError.

    Without a number of processes every host is filled, as a launcher with one slot for each process would.
    """
    fabric = twin.fabric
    if gpus_per_process < 1:
        raise ConfigError(f"got {gpus_per_process}, expected at least one GPU for a process", key="-g")
    with_gpus = np.unique(fabric.node_host[fabric.gpu_node])
    if hosts is not None and not 1 <= hosts <= len(with_gpus):
        raise ConfigError(f"got {hosts}, expected 1 to {len(with_gpus)}: hosts with GPUs", key="--hosts")
    taken = with_gpus[:hosts]
    host_of = fabric.node_host[fabric.gpu_node]
    by_host = np.argsort(host_of, kind="stable")
    first, end = (np.searchsorted(host_of[by_host], taken, side=side) for side in ("left", "right"))
    own = [fabric.gpu_node[by_host[a:b]] for a, b in zip(first, end, strict=True)]
    fewest = min(len(each) for each in own)
    if gpus_per_process > fewest:
        raise ConfigError(
            f"Invalid number of GPUs: {gpus_per_process} requested but only {fewest} were found", key="-g"
        )
    each_host = fewest // gpus_per_process
    if processes is not None:
        if processes < 1 or processes % len(taken) or processes // len(taken) > each_host:
            raise ConfigError(
                f"got {processes}, expected as many for each of {len(taken)} hosts, at most {each_host} there "
                f"({gpus_per_process} of {fewest} GPUs each)",
                key="--np",
            )
        each_host = processes // len(taken)
    return np.concatenate([nodes[: each_host * gpus_per_process] for nodes in own]).astype(np.int32)


def limited(options: Options, twin: Any, rank_node: np.ndarray) -> tuple[Options, bool]:
    """Sizes that fit into GPU memory beside what the test keeps, and whether that cut them."""
    from dataclasses import replace

    fabric = twin.fabric
    types = {
        fabric.templates[fabric.host_template[host]].gpu_type for host in set(fabric.node_host[rank_node].tolist())
    }
    memory = min(catalog.gpu(name).memory.value for name in types)
    reserved = min(-(-memory // (16 * GIB)) * GIB, 4 * GIB)
    most = (memory - reserved - GIB) // (3 if options.check else 2)
    if options.max_bytes <= most:
        return options, False
    return replace(options, max_bytes=most, min_bytes=min(options.min_bytes, most)), True


def prepare(
    twin: Any,
    options: Options,
    *,
    settings: Settings,
    rank_node: np.ndarray,
    packet: Packet | None = None,
    seed: int = 1,
    corrections: CollectiveCorrections | None = None,
) -> Run:
    """A communicator of these GPUs, and what NCCL chooses for each size. Raises ConfigError.

    `packet` is a spec's `run.packet`: the network that the packet engine models; `corrections` its calibration's.
    """
    from fabrictwin.nccl.tuning.tuner import tuner

    communicator = initialise(twin, rank_node, settings=settings, version=str(settings.release), strict=False)
    sockets = communicator.network.name == SOCKET
    modelled = packet_options(packet, twin.fabric.technology, settings, seed=seed, sockets=sockets)
    return Run(options, communicator, tuner(communicator), modelled, corrections)
