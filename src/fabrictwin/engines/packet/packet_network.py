"""A fabric and its tables as the packet kernel plays them: wiring, queue pairs, names for what goes wrong.

Inside hosts every path is source-routed over NVLink and PCIe, whose bursts move at the rate of payload. Between
adapters, InfiniBand switches look up their LFT and Ethernet ones their groups; where ECMP fixes a connection's
path for good, the path is looked up once, with the switches' own hash, and source-routed too.

A queue pair lives at the adapter. Its packets start in memory: the adapter reads ahead over PCIe as far as its
buffer reaches, and what arrives goes on over PCIe to memory. Buffers of NVLink and PCIe are as deep as a round
trip needs (figures are not public).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.engines.base.engine import TableChange
from fabrictwin.engines.packet.congestion_parameters import NSCC, dcqcn_parameters
from fabrictwin.engines.packet.host_costs import host_work, with_host_work
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.engines.packet.virtual_lanes import lane_tables, lanes_needed
from fabrictwin.fabric.compile import packet_overhead
from fabrictwin.fabric.fabric import I32, I64, NETWORK, NONE, Fabric, NodeKind
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.routing.tables import U32, Routes, udp_source_port
from fabrictwin.trace.trace import Counters

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.machine import Connection
    from fabrictwin.kernel.packet.state.build import Config, Wiring

FIRST_QPN = 0x48
_MIN_ETHERNET = 84  # shortest frame with preamble and gap


def _headers(fabric: Fabric) -> tuple[int, int, int]:
    """(bytes around a data packet, more on the first of a message, bytes of an acknowledgement)."""
    overhead = packet_overhead(fabric.technology)
    first = catalog.headers("infiniband").bytes_of("RETH")
    ack = overhead + catalog.headers("infiniband").bytes_of("AETH")
    return overhead, first, ack if fabric.technology == "infiniband" else max(ack, _MIN_ETHERNET)


def _too_large(error: Exception) -> ConfigError:
    return ConfigError(f"the packet engine {error}; a smaller cut of the job fits", key="packet")


def _beyond_first(ports: I32, start: I64) -> list[tuple[int, ...]]:
    """Each path's ports but its first, the adapter's own."""
    flat, cuts = ports.tolist(), start.tolist()
    return [tuple(flat[a + 1 : b]) for a, b in pairwise(cuts)]


@dataclass(frozen=True)
class LinkFault:
    """A directed link changes at a time: its rate (0 down, None as built), or with `error_rate` its bit errors."""

    time_ps: int
    port: int
    rate_bps: int | None = None
    error_rate: float | None = None  # chance that a bit is hit, after correction


def flapping(port: int, peer: int, *, start_ps: int, down_ps: int, up_ps: int, times: int) -> list[LinkFault]:
    """A cable that goes down and comes back, both directions at once."""
    faults = []
    for i in range(times):
        at = start_ps + i * (down_ps + up_ps)
        faults += [LinkFault(at, end, 0) for end in (port, peer)]
        faults += [LinkFault(at + down_ps, end) for end in (port, peer)]
    return faults


class PacketNetwork:
    """The packet kernel over one fabric. Adapters are endpoints, numbered as in the fabric."""

    def __init__(self, fabric: Fabric, routes: Routes, options: PacketOptions | None = None) -> None:
        from fabrictwin.kernel.packet.machine import Machine, OutOfMemoryError

        self.fabric, self.routes = fabric, routes
        self.options = options or PacketOptions()
        if fabric.technology == "infiniband" and self.options.control != "none":
            message = f"got {self.options.control!r}, which is for Ethernet; InfiniBand takes none"
            raise ConfigError(message, key="control")
        if fabric.technology == "infiniband" and not self.options.lossless:
            raise ConfigError("InfiniBand is lossless by its credits: only Ethernet can be lossy", key="lossless")
        self.finder = PathFinder(fabric, routes)
        self.header_bytes, self.first_header_bytes, self.ack_bytes = _headers(fabric)
        self.lanes = lanes_needed(routes, self.options)
        rates = fabric.port_rate_bps[fabric.nic_port[fabric.nic_port != NONE]]
        self.nic_bps = int(rates.max()) if len(rates) else 0
        self.work_port: dict[tuple[int, int], int] = {}  # links that stand for memory, cores and threads
        try:
            self.machine = Machine(self._wiring(), self._config(), limit_bytes=self.options.memory_limit_bytes)
            self.machine.check_memory(0)
        except ValueError as error:
            raise ConfigError(f"the packet engine cannot model this network: {error}", key="packet") from None
        except OutOfMemoryError as error:
            raise _too_large(error) from None
        self._set_endpoints()
        self._set_control()
        self._qpn = np.full(len(fabric.nic_node), FIRST_QPN, np.int64)
        self.faults: list[LinkFault] = []
        self.on_connect: Callable[[int, Connection], None] | None = None  # a capture wants to know
        self.awaits_changes = False  # somebody outside may yet repair what a run waits for
        self._inside: dict[tuple[int, int], list[tuple[float, tuple[int, ...]]]] = {}

    # ------------------------------------------------------------------ what the kernel is built from

    def _wiring(self) -> Wiring:
        from fabrictwin.kernel.packet.state import state as s
        from fabrictwin.kernel.packet.state.build import Wiring

        fabric, routes, options = self.fabric, self.routes, self.options
        network = np.isin(fabric.port_kind, NETWORK)
        infiniband = fabric.technology == "infiniband"
        kind = fabric.node_kind
        through = 0 if options.store_and_forward else s.CUT_THROUGH
        node_flags = np.zeros(fabric.nodes, np.int32)
        node_flags[kind == NodeKind.GPU] = s.ENDPOINT
        node_flags[kind == NodeKind.AGGREGATION] = s.ENDPOINT
        node_flags[kind == NodeKind.CPU] = s.ENDPOINT | s.INPUT_QUEUED | s.CUT_THROUGH
        node_flags[kind == NodeKind.NIC] = s.ENDPOINT | s.CUT_THROUGH | (0 if infiniband else s.SHARED)
        inside = np.isin(kind, (NodeKind.NVSWITCH, NodeKind.PCIE_SWITCH))
        node_flags[inside] = s.INPUT_QUEUED | s.CUT_THROUGH
        node_flags[kind == NodeKind.SWITCH] = through | (s.INPUT_QUEUED if infiniband else s.SHARED)

        rate = np.where(network, fabric.port_rate_bps, fabric.port_payload_bps).astype(np.int64)
        peer = fabric.port_peer
        plugged = peer != NONE
        peer_node = fabric.port_node[np.maximum(peer, 0)]
        # a round trip of credits, and packets that are being taken in and sent on
        packet = fabric.mtu_bytes + 2 * self.header_bytes
        passing = fabric.node_latency_ps[fabric.port_node] + fabric.node_latency_ps[peer_node]
        flight = 2 * fabric.port_latency_ps + passing
        deep = rate * flight // (8 * PS_PER_S) + 4 * packet + options.credit_batch_bytes
        share = fabric.node_buffer_bytes[fabric.port_node] // np.maximum(
            np.diff(fabric.node_port_start)[fabric.port_node] * self.lanes, 1
        )
        given = options.credit_bytes if options.credit_bytes else np.maximum(share, deep)
        flags = np.where(network, s.CREDIT if infiniband else s.PFC, s.CREDIT | s.INTERNAL).astype(np.int32)
        ethernet_buffer = options.buffer_bytes or fabric.node_buffer_bytes
        buffer = np.where(kind == NodeKind.SWITCH, ethernet_buffer, 0).astype(np.int64)
        buffer[kind == NodeKind.NIC] = 4 << 20  # an estimate: adapters do not publish their buffers
        # cut-through latency is counted where a packet passes, not where an adapter takes it
        arrives = fabric.port_latency_ps + np.where(
            network & (kind[peer_node] == NodeKind.NIC), 0, fabric.node_latency_ps[peer_node]
        )
        columns = routes.switches.edge_column
        nothing = np.zeros((1, 1), np.uint8)
        wiring = Wiring(
            port_node=fabric.port_node,
            port_peer=peer,
            port_bps=np.where(plugged, rate, 0),
            port_latency_ps=fabric.port_latency_ps,
            port_flags=flags,
            node_flags=node_flags,
            node_latency_ps=fabric.node_latency_ps,
            node_buffer_bytes=buffer,
            node_row=routes.switches.node_row,
            node_port_start=fabric.node_port_start,
            endpoint_port=np.where(fabric.nic_port == NONE, 0, fabric.nic_port).astype(np.int32),
            arrive_ps=np.where(plugged, arrives, 0).astype(np.int64),
            credit_bytes=np.where(network & infiniband, given, deep).astype(np.int64),
            endpoint_lid=routes.lid[fabric.nic_node].astype(np.int32),
            lft=routes.lft if routes.lft.size else nothing,
            group_of=routes.groups.group_of if routes.groups.group_of.size else np.full((1, 1), NONE, np.int32),
            group_start=routes.groups.group_start,
            group_ports=routes.groups.group_ports if len(routes.groups.group_ports) else np.zeros(1, np.int32),
            edge_column=columns,
            seeds=routes.hash_seeds.astype(np.int64),
        )
        if not options.host_work:
            return wiring
        work = host_work(fabric)
        self.work_port = work.port(fabric.ports)
        return with_host_work(wiring, work, 4 * packet + options.credit_batch_bytes)

    def _config(self) -> Config:
        from fabrictwin.kernel.packet.state import state as s
        from fabrictwin.kernel.packet.state.build import Config

        fabric, options = self.fabric, self.options
        balance = {"adaptive": s.ADAPTIVE, "spray": s.ECMP}.get(
            options.balance, s.LFT if fabric.technology == "infiniband" else s.ECMP
        )
        more: dict[str, Any] = {}
        lanes = self.lanes
        if options.control == "dcqcn":
            parameters = dcqcn_parameters(options.dcqcn)
            more = {
                "ecn_kmin_bytes": parameters.ecn.kmin_bytes,
                "ecn_kmax_bytes": parameters.ecn.kmax_bytes,
                "ecn_bps": parameters.ecn.rate_bps,
                "ecn_pmax_q": round(parameters.ecn.pmax * 2**32),
                "cnp_ps": parameters.cnp_ps,
            }
        elif options.control == "nscc":
            lanes = max(lanes, 2)  # trimmed headers and acknowledgements go first
            more = {
                "ecn_kmin_bytes": NSCC.kmin_bytes,
                "ecn_kmax_bytes": NSCC.kmax_bytes,
                "ecn_bps": 400 * 10**9,
                "ecn_pmax_q": 2**32 - 1,
                "strict": 1 << (lanes - 1),
                "trim_wire_bytes": self.header_bytes,
                "trim_lane": lanes - 1,
                "queue_limit_bytes": self.bdp_bytes,
            }
        strict, frame = more.get("strict", 0), fabric.mtu_bytes + self.header_bytes
        more |= lane_tables(fabric, self.routes, options, lanes=lanes, strict=strict, frame_bytes=frame)
        for name, otherwise in (("port_sl2vl", 0), ("sl2vl_by_input", 0), ("port_arbitration", NONE)):
            if len(more.get(name, ())) and self.work_port:
                # links that stand for a host's work know no levels
                more[name] = np.concatenate([more[name], np.full(2 * len(self.work_port), otherwise)])
        return Config(
            lanes=lanes,
            mtu_bytes=fabric.mtu_bytes,
            header_bytes=self.header_bytes,
            ack_bytes=self.ack_bytes,
            balance=balance,
            lossless=0xFF if options.lossless and options.control != "nscc" else 0,
            credit_batch_bytes=options.credit_batch_bytes,
            hoq_ps=options.hoq_ps,
            alpha_q=options.buffer_alpha_256,
            window_packets=options.window_packets,
            seed=options.seed,
            **more,
        )

    @cached_property
    def round_trip_ps(self) -> int:
        """The longest round trip between adapters with nothing in the way, packets serialized at every hop."""
        fabric, groups = self.fabric, self.routes.groups
        switch = fabric.node_kind == NodeKind.SWITCH
        network = np.isin(fabric.port_kind, NETWORK) & (fabric.port_peer != NONE)
        if not network.any() or not groups.distance.size:
            return 0
        wire = int(fabric.port_latency_ps[network].max())
        node = int(fabric.node_latency_ps[switch].max()) if switch.any() else 0
        reach = groups.distance[groups.distance < 255]
        links = int(reach.max()) + 2
        size = (fabric.mtu_bytes + self.header_bytes + self.ack_bytes) * 8 * PS_PER_S // max(self.nic_bps, 1)
        return 2 * (links * wire + (links - 1) * node) + links * size

    @property
    def bdp_bytes(self) -> int:
        """What fits into the longest round trip at an adapter's rate."""
        return self.nic_bps * self.round_trip_ps // (8 * PS_PER_S)

    def _set_endpoints(self) -> None:
        endpoint, fabric = self.machine.state.endpoint, self.fabric
        endpoint.message_ps[: len(fabric.nic_node)] = fabric.nic_message_ps
        endpoint.deliver_ps[: len(fabric.nic_node)] = fabric.nic_deliver_ps

    def _set_control(self) -> None:
        options, state = self.options, self.machine.state
        if options.control == "dcqcn":
            named, into = dcqcn_parameters(options.dcqcn), state.dcqcn_settings
            for name in ("alpha_ps", "decrease_ps", "increase_ps", "byte_counter", "g_shift", "fast"):
                into[name] = getattr(named, name)
            into.additive = named.scaled_kbps(named.additive_mbps, self.nic_bps)
            into.hyper = named.scaled_kbps(named.hyper_mbps, self.nic_bps)
            into.minimum = named.minimum_mbps * 1000
        elif options.control == "nscc":
            n, mtu, rtt = state.nscc_settings, self.fabric.mtu_bytes, self.round_trip_ps
            target = rtt * NSCC.target_of_rtt[0] // NSCC.target_of_rtt[1]
            reference = NSCC.reference_bps * NSCC.reference_ps // (8 * PS_PER_S)
            a, b = self.bdp_bytes / reference, target / NSCC.reference_ps
            n.target_ps, n.adjust_ps, n.adjust_bytes = target, rtt, 8 * mtu
            n.gamma_q, n.fair, n.eta = round(NSCC.gamma * 65536), round(5 * mtu * a), round(0.15 * mtu * a)
            n.alpha_q, n.fast_q = round(4 * mtu * a * b / target * 2**24), round(0.25 * a * 65536)
            n.fast_ps, n.gate_shift, n.minimum = 1_000_000, 3, mtu

    # ------------------------------------------------------------------ connections

    def inside(self, source: int, destination: int) -> list[tuple[float, tuple[int, ...]]]:
        """Paths inside a host, as (share of the traffic, ports)."""
        key = (source, destination)
        if key not in self._inside:
            if source == destination:
                self._inside[key] = [(1.0, ())]
            else:
                _, port, share, before, _ = self.finder.inside(
                    np.array([source], np.int32), np.array([destination], np.int32)
                )
                cuts = np.flatnonzero(np.diff(before) != 0) + 1
                self._inside[key] = [
                    (float(part[0]), tuple(int(p) for p in ports))
                    for part, ports in zip(np.split(share, cuts), np.split(port, cuts), strict=True)
                ]
        return self._inside[key]

    def local(self, source: int, destination: int) -> list[tuple[float, Connection]]:
        """One connection for each path inside a host, with its share."""
        from fabrictwin.kernel.packet.machine import Connection
        from fabrictwin.kernel.packet.state import state as s

        return [
            (
                part,
                Connection(port=ports[0], src=NONE, dst=NONE, mode=s.LOCAL, header_bytes=0, before=ports[1:]),
            )
            for part, ports in self.inside(source, destination)
        ]

    def adapters(self, source: I32, destination: I32) -> tuple[I32, I32]:
        """The adapters between memory nodes of different hosts."""
        return self.finder.adapters_between(source, destination)

    @cached_property
    def _spraying(self) -> list[bool]:
        fabric = self.fabric
        kind = fabric.node_type[fabric.nic_node].tolist()
        names = {each: fabric.type_names[each] for each in set(kind)}
        srd = {each: bool(name) and catalog.nic(name).transport == "srd" for each, name in names.items()}
        return [srd[each] for each in kind]

    def sprays(self, adapter: int) -> bool:
        """Whether it sends packets of one connection over many paths (SRD)."""
        return self._spraying[adapter]

    def remote(
        self,
        source: int,
        destination: int,
        *,
        prefix: tuple[int, ...] = (),
        suffix: tuple[int, ...] = (),
        sl: int | None = None,
        udp_port: int | None = None,
    ) -> Connection:
        """A reliable connection between adapters; `prefix` and `suffix` are ports inside the hosts.

        The service level is the route's unless it is given; the UDP source port (Ethernet) follows from queue pair
        numbers counted by adapter.
        """
        return self.remotes(
            np.array([source], np.int32),
            np.array([destination], np.int32),
            inside=[(prefix, suffix)],
            levels=[sl],
            udp_ports=None if udp_port is None else np.array([udp_port], np.uint32),
        )[0]

    def remotes(
        self,
        source: I32,
        destination: I32,
        *,
        inside: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        levels: Sequence[int | None],
        udp_ports: U32 | None = None,
    ) -> list[Connection]:
        """`remote` for many connections at once, in order; `inside` are prefix and suffix of each."""
        from fabrictwin.kernel.packet import congestion as c
        from fabrictwin.kernel.packet.machine import Connection
        from fabrictwin.kernel.packet.state import state as s

        fabric, options = self.fabric, self.options
        port, back_port = fabric.nic_port[source], fabric.nic_port[destination]
        for adapters, cables in ((source, port), (destination, back_port)):
            loose = np.flatnonzero(cables == NONE)
            if len(loose):
                name = fabric.node_name(int(fabric.nic_node[adapters[loose[0]]]))
                raise ConfigError(f"{name} has no cable", key="cluster")
        udp = self._udp_ports(source, destination) if udp_ports is None else udp_ports
        nothing: list[tuple[int, ...]] = [()] * len(source)
        out, back = nothing, nothing
        if fabric.technology == "ethernet" and options.balance == "routed":
            out = _beyond_first(*self.routes.walk(source, destination, udp))
            back = _beyond_first(*self.routes.walk(destination, source, udp))
        nscc = options.control == "nscc"
        window = options.window_bytes or s.NEVER
        if nscc:
            window = self.bdp_bytes * NSCC.window_of_bdp[0] // NSCC.window_of_bdp[1]
        routed = self.routes.service_level(source, destination).tolist()
        alike: dict[str, Any] = {
            "mode": s.SELECTIVE if options.selective else s.GO_BACK_N,
            "header_bytes": self.header_bytes,
            "first_header_bytes": self.first_header_bytes,
            "ack_bytes": self.ack_bytes,
            "window_bytes": window,
            "rto_ps": options.timeout_ps,
            "retry_limit": options.retry_count,
            "rnr_limit": options.rnr_retry,
            "rnr_ps": options.rnr_timer_ps,
            "ack_every": 1 if nscc else options.ack_every,
            "reorder": 0 if options.balance == "routed" else s.NEVER,
            "spray": options.balance == "spray",
            "control": {"none": c.NO_CONTROL, "dcqcn": c.DCQCN, "nscc": c.NSCC}[options.control],
            "base_ps": self.round_trip_ps,
        }
        # SRD's packets take a path each and come in any order
        srd = alike | {"mode": s.SELECTIVE, "reorder": s.NEVER, "spray": True}
        found = []
        columns = (source, destination, port, udp, fabric.nic_qp_message_ps[source])
        for i, (a, b, cable, key, period) in enumerate(zip(*(x.tolist() for x in columns), strict=True)):
            prefix, suffix = inside[i]
            sl = levels[i]
            if sl is None:
                sl = options.service_level
            if sl is None:
                sl = routed[i]
            entropy = (key << 15) ^ (a * 0x1F35) ^ (b * 0x5BD1)
            sprays = self.sprays(a)
            ports = [*prefix, cable, *(() if sprays else out[i])]
            found.append(
                Connection(
                    port=ports[0],
                    src=a,
                    dst=b,
                    sl=sl,
                    ack_sl=self.machine.config.lanes - 1 if nscc else sl,
                    entropy=entropy & s.M31,
                    ack_entropy=(entropy ^ 0x2A5A5A5) & s.M31,
                    message_ps=period,
                    before=tuple(ports[1:]),
                    after=suffix,
                    back=() if sprays else back[i],
                    **(srd if sprays else alike),
                )
            )
        return found

    def _udp_ports(self, source: I32, destination: I32) -> U32:
        """UDP source ports of new connections: queue pair numbers are counted by adapter."""
        ends = np.empty((2, len(source)), np.uint32)
        for i, (a, b) in enumerate(zip(source.tolist(), destination.tolist(), strict=True)):
            self._qpn[a] += 1
            if a != b:
                self._qpn[b] += 1
            ends[:, i] = self._qpn[a] - 1, self._qpn[b] - 1
        return udp_source_port(ends[0], ends[1])

    def loopback(self, adapter: int, *, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> Connection:
        """A connection of an adapter with itself: over PCIe to it and back, never on a wire."""
        from fabrictwin.kernel.packet.machine import Connection

        return Connection(
            port=prefix[0],
            src=adapter,
            dst=adapter,
            header_bytes=self.header_bytes,
            ack_bytes=self.ack_bytes,
            ack_every=self.options.ack_every,
            message_ps=int(self.fabric.nic_qp_message_ps[adapter]),
            before=prefix[1:],
            after=suffix,
        )

    def connect(self, connections: list[Connection]) -> int:
        """Add queue pairs; returns the number of the first. Raises ConfigError where memory does not reach."""
        from fabrictwin.kernel.packet.machine import OutOfMemoryError

        try:
            first = self.machine.add_queue_pairs(connections)
        except OutOfMemoryError as error:
            raise _too_large(error) from None
        if self.on_connect is not None:
            for i, connection in enumerate(connections):
                self.on_connect(first + i, connection)
        return first

    # ------------------------------------------------------------------ running

    def at(self, fault: LinkFault) -> None:
        """Let something happen to a link at a time to come."""
        if fault.time_ps < self.machine.now:
            raise ConfigError(
                f"got a fault at {fault.time_ps} ps, it is {self.machine.now} ps already", key="faults"
            )
        bisect.insort(self.faults, fault, key=lambda f: f.time_ps)

    def run(self, until_ps: int | None = None, *, drain: bool = False) -> None:
        """Advance, faults on the way included.

        Raises SimulatedError for a deadlock, an exhausted retry or an unreachable adapter.
        """
        while (due := self.next_fault_ps) is not None and (until_ps is None or due <= until_ps):
            if self.advance(due, drain=drain):
                return  # everything is done before it happens
            self.apply_fault()
        self.advance(until_ps, drain=drain)

    @property
    def next_fault_ps(self) -> int | None:
        """When the next change of a link is due."""
        return self.faults[0].time_ps if self.faults else None

    def apply_fault(self) -> None:
        """The next change of a link happens now."""
        fault = self.faults.pop(0)
        self.machine.state.clock[0].now = fault.time_ps
        if fault.error_rate is None:
            self.set_rate(fault.port, fault.rate_bps)
        else:
            self.machine.set_errors(fault.port, round(8 * fault.error_rate * 2**48))

    def advance(self, until_ps: int | None, *, drain: bool) -> bool:
        """Run to a time, or to what is told of single messages; whether all tasks are done before."""
        from fabrictwin.kernel.packet.machine import MachineError, OutOfMemoryError
        from fabrictwin.kernel.packet.state import state as s

        try:
            status = self.machine.run(s.NEVER - 1 if until_ps is None else until_ps, drain=drain)
        except OutOfMemoryError as error:
            raise _too_large(error) from None
        except MachineError as error:
            at = int(self.machine.state.clock[0].unroutable)
            name = self.fabric.node_name(int(self.fabric.nic_node[at])) if at != NONE else "packet engine"
            raise SimulatedError("unreachable", name, str(error)) from None
        if status == s.STALLED:
            # a change to come may be the repair that everything waits for
            to_come = (self.faults or self.awaits_changes) and until_ps is not None
            if not to_come or self.machine.deadlock is not None:
                self._explain_stall()
            return False
        return status in (s.FINISHED, s.IDLE) and self.machine.state.clock[0].open == 0

    def _explain_stall(self) -> None:
        from fabrictwin.kernel.packet.state import state as s

        deadlock, state = self.machine.deadlock, self.machine.state
        if deadlock is not None:
            names = " -> ".join(f"{self.fabric.port_name(port)} lane {vl}" for port, vl in deadlock.cycle)
            raise SimulatedError(
                "deadlock",
                self.fabric.port_name(deadlock.cycle[0][0]),
                f"{len(deadlock.all)} outputs wait for each other for ever: {names}",
            )
        failed = np.flatnonzero(state.qp.failed[: self.machine.queue_pairs])
        if len(failed):
            qp = state.qp[failed[0]]
            a, b = (self.fabric.node_name(int(self.fabric.nic_node[int(n)])) for n in (qp.src, qp.dst))
            raise SimulatedError(
                "IBV_WC_RETRY_EXC_ERR",
                a,
                f"{len(failed)} queue pairs gave up after {int(qp.retry_limit)} retries, the first toward {b}",
            )
        left = int((state.task.status[: self.machine.tasks] != s.DONE).sum())
        raise SimulatedError("stalled", "packet engine", f"{left} tasks are open and nothing will ever move again")

    def set_rate(self, port: int, rate_bps: int | None) -> None:
        """A directed link changes now: None is what was built, 0 takes it down."""
        fabric = self.fabric
        built = int(fabric.port_rate_bps[port])
        wanted = built if rate_bps is None else rate_bps
        if fabric.port_kind[port] not in [int(k) for k in NETWORK]:
            wanted = wanted * int(fabric.port_payload_bps[port]) // max(built, 1)
        self.machine.set_rate(port, wanted)

    def set_tables(self, change: TableChange) -> None:
        """Entries of forwarding tables change now. Raises ConfigError on Ethernet."""
        if self.fabric.technology != "infiniband":
            raise ConfigError("got a change of forwarding tables on Ethernet, expected InfiniBand", key="change")
        self.machine.set_tables(change.row, change.lid, change.port)

    def counters(self) -> Counters:
        """What ports counted so far."""
        state = self.machine.state
        n = self.fabric.ports
        wait = state.port.wait_ps[:n].copy()
        waiting = state.port.wait_since[:n]
        wait += np.where(waiting >= 0, self.machine.now - waiting, 0)
        ethernet = self.fabric.technology == "ethernet"
        return Counters(
            tx_bytes=state.port.tx_payload[:n].copy(),
            wait_ps=wait,
            drops=state.count.discards[:n].copy(),
            ecn_marks=state.count.ecn_marks[:n].copy() if ethernet else None,
            pauses=state.count.pause_tx[:n].copy() if ethernet else None,
        )

    def hop_estimate(self, nics: Sequence[tuple[int, int]], size_bytes: I64) -> int:
        """Packet-hops that messages between adapters will take, acknowledgements included."""
        groups, switches = self.routes.groups, self.routes.switches
        if not len(nics):
            return 0
        pair = np.asarray(nics)
        rows = np.full(len(self.fabric.nic_node), NONE, np.int64)
        rows[self.fabric.node_nic[switches.endpoint_node]] = switches.endpoint_row
        row = rows[pair]
        known = (row >= 0).all(axis=1)
        column = switches.edge_column[np.maximum(row[:, 1], 0)]
        links = np.where(known, groups.distance[np.maximum(column, 0), np.maximum(row[:, 0], 0)], 0) + 2
        packets = np.maximum(-(-np.asarray(size_bytes) // self.fabric.mtu_bytes), 1)
        acks = 1 if self.options.control == "nscc" else self.options.ack_every
        return int((links * (packets + -(-packets // acks))).sum())
