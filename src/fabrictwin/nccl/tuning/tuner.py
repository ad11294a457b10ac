"""NCCL's choice: the algorithm, protocol, channels and threads of a collective by its size.

The least time of the cost model wins (`topoGetAlgoInfo`); then channels drop and threads halve while each thread
would have less than its threshold of bytes, and since 2.22 channels that would carry too little are left out
(`scheduleCollTasksToPlan`). One collective at a time: NCCL fuses those of a group call, which this leaves out.
"""

from __future__ import annotations

from collections.abc import Collection

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.communicator.plugin_settings import served
from fabrictwin.nccl.constants import ELEMENT_BYTES, MOST_THREADS, REDUCTIONS, WARP_THREADS
from fabrictwin.nccl.settings.algorithm_selection import COLLECTIVES
from fabrictwin.nccl.settings.settings import Settings, read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol
from fabrictwin.nccl.topology.system import Kind
from fabrictwin.nccl.tuning.algorithm_rules import CommunicatorShape, HostHardware
from fabrictwin.nccl.tuning.aws_tuner import plugin_tuner
from fabrictwin.nccl.tuning.cost_model import GATHERS, Tables, tables
from fabrictwin.nccl.tuning.tuning_constants import Constants

A = Algorithm
P = Protocol
# what NVLink SHARP reduces in the switch (`ncclNvlsSupported`)
_NVLS = {
    **dict.fromkeys(("int32", "uint32", "int64", "uint64", "half", "bfloat16"), ("sum", "min", "max")),
    **dict.fromkeys(("float", "double"), ("sum",)),
}
# what InfiniBand switches reduce (SHARP's types; an average is a sum that the hosts divide)
_COLLNET_OPERATIONS = ("sum", "min", "max", "avg", "mulsum")


@record
class Call:
    """One collective as it is called; `nbytes` is what NCCL counts: the larger of all sent or received."""

    collective: str  # AllReduce, AllGather, ReduceScatter, Broadcast, Reduce
    nbytes: int
    datatype: str = "float"
    operation: str = "sum"


@record
class Choice:
    """The algorithm, protocol and channels that NCCL would run a collective with."""

    call: Call
    algorithm: Algorithm
    protocol: Protocol
    channels: int  # that carry bytes
    max_channels: int  # that the tuner allowed
    threads: int  # of each channel's block
    time_us: float  # by the cost model


class Tuner:
    """The tables of one communicator, and its choices."""

    def __init__(self, shape: CommunicatorShape, settings: Settings) -> None:
        self.settings = settings
        self.tables: Tables = tables(shape, settings)
        self.plugin = plugin_tuner(settings, shape.hardware.instance, shape.ranks, shape.nodes)
        self._chosen: dict[tuple[Call, tuple[Algorithm, ...]], Choice] = {}

    @property
    def shape(self) -> CommunicatorShape:
        return self.tables.shape

    def costs(self, call: Call) -> dict[tuple[Algorithm, Protocol], float]:
        """µs of every way that can be."""
        check(call)
        if self.shape.ranks == 1:
            return {(A.RING, P.SIMPLE): 0.0}
        found: dict[tuple[Algorithm, Protocol], float] = {}
        for algorithm in Algorithm:
            if not _able(call, algorithm, self.shape, self.tables.constants):
                continue
            for protocol in Protocol:
                time = self.tables.time_us(call.collective, algorithm, protocol, call.nbytes)
                if time is not None:
                    found[algorithm, protocol] = time
        if not found and self.tables.constants.rules.ring_fallback in ("any_protocol", "allowed_protocol"):
            for protocol in Protocol:
                time = self.tables.backup_time_us(call.collective, protocol, call.nbytes)
                if time is not None:
                    found[A.RING, protocol] = time
        if (
            call.datatype.startswith("fp8")
            and self.tables.constants.rules.fp8_ring_avoided
            and self.shape.ranks > 8
        ):
            # far below every other: rings would round at each hop
            found = {way: time * (1024 if way[0] == A.RING else 1) for way, time in found.items()}
        return found

    def choose(self, call: Call, *, without: Collection[Algorithm] = ()) -> Choice:
        """The fastest way by the cost model, but for algorithms `without`.

        Raises ConfigError where nothing is left, in NCCL's words.
        """
        key = call, tuple(without)
        if key not in self._chosen:
            self._chosen[key] = self._choose(call, without)
        return self._chosen[key]

    def _choose(self, call: Call, without: Collection[Algorithm]) -> Choice:
        costs = self.costs(call)
        if not costs:
            raise ConfigError(self._nothing(call))
        found = {way: time for way, time in costs.items() if way[0] not in without}
        if not found:
            names = ", ".join(sorted({way[0].name for way in costs}))
            raise ConfigError(f"got {names} for {call.collective}, which the engine cannot play", key="NCCL_ALGO")
        asked = 0
        ways = None if self.plugin is None else self.plugin.choose(call.collective, call.nbytes, found)
        if ways is not None:
            taken, asked = ways
            found[taken] = 0.0
        # NCCL walks algorithms, then protocols, and keeps the first of equals
        algorithm, protocol = min(found, key=lambda way: (found[way], way))
        most, threads = self._channels_and_threads(call, algorithm, protocol)
        most = asked or most
        used = self._used(call, algorithm, protocol, most)
        return Choice(call, algorithm, protocol, used, most, threads, found[algorithm, protocol])

    def _nothing(self, call: Call) -> str:
        datatype = _TYPE_NAMES.get(call.datatype, "Unknown")
        text = f"No algorithm/protocol available for function {call.collective} with datatype {datatype}."
        for name, selection in (("NCCL_ALGO", self.settings.algo), ("NCCL_PROTO", self.settings.proto)):
            if selection is not None:
                text += f" {name} was set to {selection.text}."
        return text

    def _channels_and_threads(self, call: Call, algorithm: Algorithm, protocol: Protocol) -> tuple[int, int]:
        shape, rules = self.shape, self.tables.constants.rules
        channels = shape.channels
        threads = self.tables.max_threads[algorithm, protocol]
        threshold = self.tables.thread_threshold[algorithm, protocol]
        nbytes = call.nbytes
        if algorithm == A.COLLNET_DIRECT:
            channels = _collnet_channels(nbytes, channels, threads, shape.collnet_heads, threshold)
        elif algorithm in (A.NVLS, A.NVLS_TREE):
            capped = rules.nvls_channels_capped and algorithm == A.NVLS and shape.nodes > 1
            channels = min(shape.nvls_channels, channels) if capped else shape.nvls_channels
        else:
            while nbytes < channels * threads * threshold and channels >= 2:
                channels -= 1
            while nbytes < channels * threads * threshold and threads % 128 == 0:
                threads //= 2
        if protocol == P.SIMPLE and algorithm == A.RING:
            threads += WARP_THREADS
        if protocol == P.SIMPLE and algorithm == A.TREE:
            threads += 4 * WARP_THREADS
        threads = max(threads, 3 * WARP_THREADS)
        if rules.full_trees and algorithm in (A.TREE, A.PAT):
            threads = MOST_THREADS
        return channels, threads

    def _used(self, call: Call, algorithm: Algorithm, protocol: Protocol, most: int) -> int:
        """Channels that get bytes: cells of a least traffic are dealt to them."""
        rules, shape = self.tables.constants.rules, self.shape
        collnet = algorithm in (A.COLLNET_DIRECT, A.COLLNET_CHAIN) or (algorithm == A.NVLS and shape.nodes > 1)
        least = rules.traffic_channel
        if not least or collnet or most <= 1:
            return most
        own = call.nbytes // shape.ranks if call.collective in GATHERS else call.nbytes
        per_byte = {"AllReduce": 2, "AllGather": shape.ranks, "ReduceScatter": shape.ranks}.get(call.collective, 1)
        if protocol == P.LL:
            per_byte *= 4
        traffic = max(least, own * per_byte)
        each = _up(traffic // most, 16)
        cell = _up(-(-least // per_byte), 16)
        cells = -(-own // cell)
        each_cells = min(cells, -(-each // (cell * per_byte)))
        limit = shape.nvls_channels if algorithm in (A.NVLS, A.NVLS_TREE) else shape.channels
        return max(1, min(limit, -(-cells // each_cells) if each_cells else 1))


def tuner(communicator: Communicator) -> Tuner:
    """The tuner of a communicator."""
    return Tuner(shape_of(communicator), settings_of(communicator))


def choose(
    communicator: Communicator, collective: str, nbytes: int, *, datatype: str = "float", operation: str = "sum"
) -> Choice:
    """One choice; for many sizes of one communicator keep a `tuner`."""
    return tuner(communicator).choose(Call(collective, nbytes, datatype, operation))


def shape_of(communicator: Communicator) -> CommunicatorShape:
    """A communicator as the cost model sees it."""
    systems = [view.system for view in communicator.hosts.used]
    collnet = communicator.graphs.get(A.COLLNET_DIRECT)
    hardware = HostHardware(
        capability=communicator.compute_capability,
        highest_capability=max(
            system.devices[gpu].capability for system in systems for gpu in system.of(Kind.GPU)
        ),
        cpu=communicator.cpu,
        nvswitch=all(system.of(Kind.NVS) for system in systems),
        instance=_instance(communicator),
    )
    return CommunicatorShape(
        ranks=communicator.ranks,
        nodes=communicator.nodes,
        local_ranks=communicator.ranks_per_node,
        hardware=hardware,
        graphs=communicator.graphs,
        channels=communicator.channels.collective,
        nvls_channels=communicator.channels.nvls,
        collnet_heads=0 if collnet is None else len(set(collnet.intra[0, :, 0].tolist())),
    )


def _instance(communicator: Communicator) -> str:
    """The kind of its hosts that the network's plugin serves, "" where it serves none or they differ."""
    fabric = communicator.twin.fabric
    kinds = {int(fabric.host_template[host]) for host in communicator.placement.host_of_node.tolist()}
    templates = [fabric.templates[kind] for kind in kinds]
    name = str(templates[0].type)
    return (
        name
        if len(kinds) == 1 and served(settings_of(communicator), templates[0], communicator.network.name)
        else ""
    )


def settings_of(communicator: Communicator) -> Settings:
    """Its settings, or NCCL's defaults of its release."""
    found: Settings | None = communicator.settings
    return read_settings({}, release=communicator.version) if found is None else found


def check(call: Call) -> None:
    """Raises ConfigError where a call is none that NCCL has."""
    for value, known, key in (
        (call.collective, COLLECTIVES, "collective"),
        (call.datatype, tuple(ELEMENT_BYTES), "datatype"),
        (call.operation, REDUCTIONS, "operation"),
    ):
        if value not in known:
            hint = did_you_mean(value, known)
            raise ConfigError(f"got {value!r}, expected one of {', '.join(known)}{hint}", key=key)


def _able(call: Call, algorithm: Algorithm, shape: CommunicatorShape, known: Constants) -> bool:
    """Return true if an algorithm can do this operation on this type here."""
    rules = known.rules
    gather = call.collective in GATHERS
    reduces = call.collective != "AllGather"
    collnet = shape.collnet and (not reduces or call.operation in _COLLNET_OPERATIONS)
    if algorithm == A.COLLNET_DIRECT:
        return collnet and shape.local_ranks <= rules.collnet_direct_local
    if algorithm == A.COLLNET_CHAIN:
        return collnet and shape.local_ranks <= rules.collnet_chain_local
    if algorithm in (A.NVLS, A.NVLS_TREE):
        if shape.nvls_channels == 0 or (reduces and call.operation not in _NVLS.get(call.datatype, ())):
            return False
        if algorithm == A.NVLS and shape.nodes > 1 and not collnet:
            return False
        if algorithm == A.NVLS and gather and shape.nodes > 1 and rules.nvls_single_host_gather:
            return False
        return not gather or shape.local_ranks <= rules.nvls_arity
    if algorithm == A.PAT and call.collective == "ReduceScatter":
        return call.operation not in ("avg", "mulsum")
    return True


def _collnet_channels(nbytes: int, channels: int, threads: int, heads: int, threshold: int) -> int:
    """CollNet direct gives up channels in stages of 16, 8, 4 and on, for half the threshold at each."""
    stage = 16
    short = True
    while stage >= 1 and short:
        while True:
            short = nbytes < channels * threads * heads * threshold
            if not short or channels <= stage:
                break
            if channels == stage + stage // 2:
                threshold //= 2
            channels -= 1
        stage //= 2
    return channels


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# ncclDatatypeToString; of ncclUint8 it does not know
_TYPE_NAMES = {
    "int8": "ncclInt8", "int32": "ncclInt32", "uint32": "ncclUint32", "int64": "ncclInt64", "uint64": "ncclUint64",
    "half": "ncclFloat16", "float": "ncclFloat32", "double": "ncclFloat64", "bfloat16": "ncclBfloat16",
    "fp8_e4m3": "ncclFloat8e4m3", "fp8_e5m2": "ncclFloat8e5m2",
}  # fmt: skip
