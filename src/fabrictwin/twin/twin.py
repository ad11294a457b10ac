"""The twin: one fabric with its tables, link states and clock, and the engines that run over it.

Batch runs make one and throw it away; a long-lived one is changed while it lives. What it is at rest can be
saved and loaded: the blueprint, how it is routed, its tables, its changed links, its clock. Operations that are
under way cannot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.capabilities import Fidelity, capabilities_of
from fabrictwin.base.errors import ConfigError, InvariantError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.base.textfile import open_bytes, reading
from fabrictwin.cluster.blueprint import AggregationSite, Blueprint, Cables, HostSite, Identity, SwitchSite
from fabrictwin.cluster.disturbances import FOREVER, CableChange, PauseStorm
from fabrictwin.cluster.faults import ACCESS_CONTROL, HostCause
from fabrictwin.cluster.spec.congestion_section import CongestionControl
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.engine import Engine
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.compile import (
    compile_fabric,
    ports_of_cable,
    with_access_control_on,
    with_adapter_corrections,
)
from fabrictwin.fabric.fabric import Fabric, LinkKind, NodeKind
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.routing.congestion_tables import tables_of
from fabrictwin.routing.engines.registry import route
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.tables import DEFAULT_HASH, Routes

if TYPE_CHECKING:
    from fabrictwin.engines.analytic.closed_forms import ClosedForms
    from fabrictwin.subnet.manager.mad_transport import MadTiming
    from fabrictwin.subnet.manager.settings.manager_settings import Settings
    from fabrictwin.subnet.operation.managed_fabric import ManagedFabric

_FORMAT = 2


@record
class Hop:
    """One directed link of a path, and the share of the bytes that takes it."""

    link: str
    kind: str
    rate_bps: int
    latency_ps: int
    share: float


class Twin:
    """A cluster that lives. `dead` lists cables that are down from the start: tables know nothing of them."""

    def __init__(
        self,
        blueprint: Blueprint,
        *,
        engine: str = "auto",
        hash_name: str = DEFAULT_HASH,
        seed: int = 0,
        dead: tuple[int, ...] = (),
    ) -> None:
        self.blueprint = _without(blueprint, dead) if dead else blueprint
        self.options = Options()  # of routing; to be set before tables are asked for
        self._dead = tuple(sorted(dead))
        self.engine, self.hash_name, self.seed = engine, hash_name, seed
        self.fabric: Fabric = compile_fabric(self.blueprint)
        self.host_causes: dict[int, tuple[HostCause, ...]] = {}  # see `afflict`
        self.congestion: CongestionControl | None = None  # InfiniBand's, of all switches and adapters
        self.spread = False  # switches spread packets over equal-cost ports, as the flow engine sees it
        self.link_rate_bps: dict[int, int] = {}  # ports that do not run at the rate they were built for
        self.management: ManagedFabric | None = None  # the subnets' managers, where the twin has any
        self._engine: Engine | None = None
        self._tables: np.ndarray | None = None
        self._clock_ps = 0

    def afflict(self, causes: dict[int, tuple[HostCause, ...]]) -> None:
        """Say what is wrong with hosts, by host; before tables are asked for."""
        self.host_causes = causes
        redirected = [h for h, each in causes.items() if any(cause.kind == ACCESS_CONTROL for cause in each)]
        if redirected:
            self.fabric = with_access_control_on(self.fabric, redirected)

    def correct(self, *, latency_ps: int, message_rate: float) -> None:
        """Add to what a message takes to arrive, scale rates of messages; before an engine is asked for."""
        self.fabric = with_adapter_corrections(self.fabric, latency_ps=latency_ps, message_rate=message_rate)

    @cached_property
    def routes(self) -> Routes:
        """The forwarding tables; computed when first asked for."""
        return self._routing()()

    def _routing(self) -> Callable[[], Routes]:
        """Return what computes the tables of the twin as it is now, and does not refer to the twin."""
        fabric, engine, hash_name, seed = self.fabric, self.engine, self.hash_name, self.seed
        options, congestion, tables = self.options, self.congestion, self._tables

        def compute() -> Routes:
            routes = route(fabric, engine=engine, hash_name=hash_name, seed=seed, options=options)
            if congestion is not None:
                routes = replace(routes, congestion=tables_of(fabric, congestion))
            return routes if tables is None else replace(routes, lft=tables)

        return compute

    def _routes_for_engine(self) -> Callable[[], Routes]:
        """Return what gives an engine the twin's tables when it asks, or, once the twin is gone, those it had.

        An engine that referred to the twin, which owns it, would be cyclic garbage: few objects that hold large
        arrays, which the collector, since it counts objects, seldom looks for.
        """
        twin, known, compute = ref(self), self.__dict__.get("routes"), self._routing()

        def asked() -> Routes:
            alive = twin()
            if alive is not None:
                return alive.routes
            return compute() if known is None else known

        return asked

    def manage(
        self,
        *,
        host: str = "",
        settings: Settings | None = None,
        timing: MadTiming | None = None,
        sweep_ps: int | None = None,
    ) -> ManagedFabric:
        """Bring the subnets up with managers of the twin's own: its tables are what they programmed from now on.

        `host` names the node that the first manager runs on. Raises ConfigError on Ethernet, or where no adapter
        has a cable.
        """
        from fabrictwin.subnet.agents.agent_state import SubnetState
        from fabrictwin.subnet.agents.mad_routing import Network
        from fabrictwin.subnet.operation import managed_fabric as managed
        from fabrictwin.subnet.operation.cluster_endpoint import manager_nodes
        from fabrictwin.subnet.operation.manager_host import HostedManager
        from fabrictwin.subnet.operation.tables_in_force import routes_of
        from fabrictwin.subnet.serve.endpoint import Endpoint

        endpoint = Endpoint(Network(SubnetState(self.fabric)))
        managers = [
            HostedManager(endpoint, m, settings=settings, timing=timing) for m in manager_nodes(endpoint, host)
        ]
        self.management = managed.ManagedFabric(endpoint, managers, sweep_ps=sweep_ps or managed.SWEEP_PS)
        self.management.start()
        self.take_tables(routes_of(endpoint.state, [one.manager for one in managers]))
        return self.management

    def take_tables(self, routes: Routes) -> None:
        """These are the twin's tables from now on, for engines to come."""
        self.__dict__["routes"] = routes

    @property
    def as_it_runs(self) -> Fabric:
        """The fabric with the rates that its links run at now."""
        if not self.link_rate_bps:
            return self.fabric
        rate, payload = self.fabric.port_rate_bps.copy(), self.fabric.port_payload_bps.copy()
        for port, rate_bps in self.link_rate_bps.items():
            payload[port] = round(int(payload[port]) * rate_bps / max(int(rate[port]), 1))
            rate[port] = rate_bps
        return replace(self.fabric, port_rate_bps=rate, port_payload_bps=payload)

    @property
    def now_ps(self) -> int:
        return self._clock_ps + (self._engine.now_ps if self._engine else 0)

    def ports_of(self, cable: int) -> tuple[int, int]:
        """The ports that drive the two directions of a cable of the twin's blueprint. Raises ConfigError."""
        cables = self.blueprint.cables
        if not 0 <= cable < len(cables):
            raise ConfigError(f"got cable {cable}, expected one of the {len(cables)} from 0", key="cable")
        return ports_of_cable(self.fabric, self.blueprint, cable)

    def cable_now(self, cable: int) -> int:
        """A cable's place in the twin's blueprint, from its place in the one that the twin was made of."""
        return cable - int(np.searchsorted(self._dead, cable))

    def timed_changes(self, changes: Sequence[CableChange]) -> tuple[TimedChange, ...]:
        """Changes of cables (of the blueprint that the twin was made of) as changes of the ports at both ends."""
        return tuple(
            TimedChange(change.time_ps, port, change.rate_bps, change.error_rate)
            for change in changes
            for port in self.ports_of(self.cable_now(change.cable))
        )

    def pause_changes(self, storms: Sequence[PauseStorm]) -> tuple[TimedChange, ...]:
        """Pause storms as changes of the port that pauses its peer."""
        found = []
        for storm in storms:
            port = self.ports_of(self.cable_now(storm.cable))[storm.end]
            found.append(TimedChange(storm.time_ps, port, pause=(storm.priority, True)))
            if storm.until_ps < FOREVER:
                found.append(TimedChange(storm.until_ps, port, pause=(storm.priority, False)))
        return tuple(found)

    def degrade(self, cable: int, rate_bps: int) -> None:
        """Both directions of a cable of the blueprint run at another rate from now on; 0 is down.

        Raises ConfigError for a cable that is not there, or a rate above what it was built for.
        """
        built = int(self.blueprint.cables.rate_bps[cable]) if 0 <= cable < len(self.blueprint.cables) else 0
        if built and not 0 <= rate_bps <= built:
            raise ConfigError(f"got a rate of {rate_bps} b/s, expected 0 to {built}", key="rate")
        for end in self.ports_of(cable):
            self.link_rate_bps[end] = rate_bps
            if self._engine is not None:
                self._engine.change(TimedChange(self._engine.now_ps, end, rate_bps))

    def path(self, source: str, destination: str) -> tuple[list[Hop], int]:
        """Every hop from one GPU (or processor) to another by name, and the latency in ps of an empty message.

        Raises ConfigError for a name that is not there, or that holds no memory.
        """
        fabric = self.fabric
        ends = []
        for name in (source, destination):
            try:
                node = fabric.find_node(name)
            except KeyError:
                known = [fabric.node_name(int(n)) for n in fabric.gpu_node]
                hint = did_you_mean(name, known)
                raise ConfigError(
                    f"got {name!r}, expected a GPU such as {known[0] if known else 'none'!r}{hint}"
                ) from None
            if fabric.node_kind[node] not in (NodeKind.GPU, NodeKind.CPU):
                raise ConfigError(f"got {name!r}, expected a GPU or a processor, which hold memory")
            ends.append(np.array([node], np.int32))
        found = PathFinder(fabric, self.routes).find(ends[0], ends[1])
        hops = [
            Hop(
                link=fabric.link_name(int(port)),
                kind=LinkKind(int(fabric.port_kind[port])).name.lower(),
                rate_bps=self.link_rate_bps.get(int(port), int(fabric.port_rate_bps[port])),
                latency_ps=int(fabric.port_latency_ps[port]),
                share=float(share),
            )
            for port, share in zip(found.port, found.share, strict=True)
        ]
        return hops, int(found.latency_ps[0])

    def start_engine(self, fidelity: Fidelity = "flow", packet: PacketOptions | None = None) -> Engine:
        """Start an engine over this twin, links as they are now. It becomes the twin's own.

        `packet` is what the packet engine is to model; the others have no such options. Raises ConfigError.
        """
        engine = self._new_engine(fidelity, packet)
        for change in self._links_now():
            engine.change(change)
        self._clock_ps = self.now_ps
        self._engine = engine
        return engine

    def _new_engine(self, fidelity: Fidelity, packet: PacketOptions | None) -> Engine:
        capabilities_of(fidelity)  # refuses what is none
        if fidelity == "analytic":
            from fabrictwin.engines.analytic.analytic_engine import AnalyticEngine

            return AnalyticEngine(self.fabric, self._routes_for_engine())
        if fidelity == "flow":
            from fabrictwin.engines.flow.flow_engine import FlowEngine

            return FlowEngine(self.fabric, self.routes, spread=self.spread)
        from fabrictwin.engines.packet.packet_engine import PacketEngine

        return PacketEngine(self.fabric, self.routes, packet)

    def flow_engines(self, count: int) -> Iterator[Engine]:
        """Return so many flow engines at rest, one after the other, for what is timed by itself.

        Connections that one opens are those of the next, and their ports count nothing.
        """
        from fabrictwin.engines.flow.flow_engine import FlowEngine

        open_ = None
        for _ in range(count):
            engine = FlowEngine(
                *(self.fabric, self.routes), spread=self.spread, connections=open_, counted=False, keep=count > 1
            )
            for change in self._links_now():
                engine.change(change)
            open_ = engine.flows.connections
            yield engine

    def closed_forms(self) -> ClosedForms:
        """Return the closed forms of communications over this twin, links as they are now."""
        from fabrictwin.engines.analytic.closed_forms import ClosedForms

        forms = ClosedForms(self.fabric)
        for change in self._links_now():
            forms.change(change)
        return forms

    def _links_now(self) -> list[TimedChange]:
        """Changes that make links of a new engine run as the twin's do."""
        return [TimedChange(0, port, rate_bps) for port, rate_bps in sorted(self.link_rate_bps.items())]

    def save(self, path: str | Path) -> None:
        """Write the twin at rest as one .npz file without pickles. Raises InvariantError while it is at work."""
        if self._engine is not None and not self._engine.idle:
            raise InvariantError("a twin with operations under way cannot be saved")
        state = {
            "format": _FORMAT,
            "engine": self.engine,
            "hash": self.hash_name,
            "seed": self.seed,
            "options": {**asdict(self.options), "weights": [[*k, w] for k, w in self.options.weights.items()]},
            "congestion": None if self.congestion is None else self.congestion.model_dump(mode="json"),
            "clock_ps": self.now_ps,
            "technology": self.blueprint.technology,
            "mtu_bytes": self.blueprint.mtu_bytes,
            "hosts": [asdict(site) for site in self.blueprint.hosts],
            "switches": [asdict(site) for site in self.blueprint.switches],
            "aggregations": [asdict(site) for site in self.blueprint.aggregations],
            "notes": list(self.blueprint.notes),
            "identities": [[guid, asdict(who)] for guid, who in sorted(self.blueprint.identities.items())],
            "machines": {
                name: host.model_dump(mode="json", exclude={"name"})
                for name, host in catalog.defined_hosts().items()
                if any(site.type == name for site in self.blueprint.hosts)
            },
            "host_causes": {
                host: [asdict(cause) for cause in causes] for host, causes in self.host_causes.items()
            },
        }
        with Path(path).open("wb") as file:
            np.savez(
                file,
                state=np.frombuffer(json.dumps(state, sort_keys=True).encode(), np.uint8),
                cables=np.stack([np.asarray(column) for column in vars(self.blueprint.cables).values()]),
                lft=self.routes.lft,
                links=np.array(sorted(self.link_rate_bps.items()), np.int64).reshape(-1, 2),
            )

    @classmethod
    def load(cls, path: str | Path) -> Twin:
        """Read what `save` wrote. Raises ConfigError for anything else."""
        with reading(path):
            file = open_bytes(path)
        if not file.seekable():
            file.close()
            raise ConfigError("got a pipe, expected a file", file=path)
        try:
            with file, np.load(file, allow_pickle=False) as stored:
                state: dict[str, Any] = json.loads(stored["state"].tobytes())
                cables, lft, links = stored["cables"], stored["lft"], stored["links"]
            if state["format"] != _FORMAT:
                raise ValueError(f"got format {state['format']}, expected {_FORMAT}")
            for name, host in state["machines"].items():
                catalog.define_host(name, host)
            blueprint = Blueprint(
                technology=state["technology"],
                hosts=tuple(HostSite(**_tuples(site)) for site in state["hosts"]),
                switches=tuple(SwitchSite(**site) for site in state["switches"]),
                cables=Cables(*cables),
                aggregations=tuple(AggregationSite(**site) for site in state["aggregations"]),
                mtu_bytes=state["mtu_bytes"],
                notes=tuple(state["notes"]),
                identities={guid: Identity(**who) for guid, who in state.get("identities", ())},
            )
            twin = cls(blueprint, engine=state["engine"], hash_name=state["hash"], seed=state["seed"])
            causes = state["host_causes"].items()
            twin.afflict({int(host): tuple(HostCause(**cause) for cause in each) for host, each in causes})
            options = state["options"]
            weights = {(guid, port): weight for guid, port, weight in options["weights"]}
            lists: dict[str, Any] = {
                key: tuple(options.get(key, ())) for key in ("roots", "order", "compute", "storage")
            }
            rest = {key: options[key] for key in ("lmc", "lanes", "scatter") if key in options}
            twin.options = Options(weights=weights, **lists, **rest)
            if state.get("congestion") is not None:
                twin.congestion = CongestionControl.model_validate(state["congestion"])
            if lft.dtype != np.uint8 or lft.ndim != 2 or len(lft) != len(twin.fabric.switch_nodes):
                raise ValueError(f"got tables {lft.shape} of {lft.dtype}")
            twin._tables = lft
            twin._clock_ps = int(state["clock_ps"])
            twin.link_rate_bps = {int(port): int(rate) for port, rate in links}
            if twin._clock_ps < 0 or not all(0 <= port < twin.fabric.ports for port in twin.link_rate_bps):
                raise ValueError("got a time or a port that cannot be")
        except ConfigError:
            raise
        except Exception as error:  # a damaged file can fail anywhere between zip, numpy and json
            raise ConfigError(f"expected a twin that was saved: {error}", file=path) from None
        return twin


def _tuples(site: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in site.items()}


def _without(blueprint: Blueprint, dead: tuple[int, ...]) -> Blueprint:
    """The blueprint with some cables pulled."""
    keep = np.setdiff1d(np.arange(len(blueprint.cables)), dead)
    cables = Cables(*(np.asarray(column)[keep] for column in vars(blueprint.cables).values()))
    return replace(blueprint, cables=cables)
