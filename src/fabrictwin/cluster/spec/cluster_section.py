"""The `cluster` section of a spec: a cluster that is generated, discovered or spelled out."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    field_validator,
    model_validator,
)

from fabrictwin.base.errors import quoted
from fabrictwin.base.units import (
    Length,
    Rate,
    Size,
    exact_length,
    exact_rate,
    parse_length,
    parse_rate,
    parse_size,
)
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.cluster.blueprint import Technology
from fabrictwin.cluster.names import parse_name, split_jack
from fabrictwin.cluster.spec.congestion_section import CongestionControl
from fabrictwin.cluster.spec.model_base import Model as Model
from fabrictwin.cluster.spec.qos_section import Qos

Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Name = Annotated[str, BeforeValidator(parse_name, json_schema_input_type=str)]

_MTUS = (256, 512, 1024, 2048, 4096)


def _ratio(value: object) -> float:
    """`2`, `1.5` or `'3:1'` to ports down per port up."""
    down, colon, up = str(value).partition(":")
    try:
        ratio = float(down) / float(up if colon else 1)
    except (ValueError, ZeroDivisionError):
        ratio = -1.0
    if isinstance(value, bool) or not 1 <= ratio <= 1000:
        raise ValueError(f"got {value!r}, expected ports down per port up, from 1 upwards, such as 2 or '3:1'")
    return ratio


Ratio = Annotated[float, BeforeValidator(_ratio, json_schema_input_type=float | str)]


def _mtu(value: object) -> object:
    size = parse_size(value) if isinstance(value, str | int | float) else value
    if isinstance(size, int) and size not in _MTUS:
        raise ValueError(f"got {value!r}, expected '256 B', '512 B', '1 KiB', '2 KiB' or '4 KiB'")
    return value


Mtu = Annotated[Size, BeforeValidator(_mtu)]


# a schema shows defaults as a file would give them
HOST_CABLE = Field(default=3_000, json_schema_extra={"default": "3 m"})
TRUNK_CABLE = Field(default=20_000, json_schema_extra={"default": "20 m"})
MTU = Field(default=4096, json_schema_extra={"default": "4 KiB"})


class Routing(Model):
    """How forwarding tables are filled. The engines and hashes are the routing room's.

    `roots` are switches by name, glob or GUID; `weights` what a link counts, by the switch's port where it starts.
    The keys from `guid_routing_order` on are OpenSM's, for its engines: adapters by name, glob or port GUID (the
    order: switches too).
    """

    engine: str = "default"
    hash: str = "default"  # Ethernet
    seed: Seed = 0
    roots: tuple[str, ...] = ()  # InfiniBand, as all below
    weights: dict[str, Annotated[int, Field(strict=True, ge=1, le=255)]] = Field(default_factory=dict)
    lmc: Annotated[int, Field(strict=True, ge=0, le=7)] = 0
    lanes: Annotated[int, Field(strict=True, ge=1, le=15)] | None = None
    guid_routing_order: tuple[str, ...] = ()
    scatter_ports: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] = 0
    cn_guids: tuple[str, ...] = ()
    io_guids: tuple[str, ...] = ()


class NcclXml(Model):
    """A machine as NCCL's topology XML has it. What the file does not say is named by catalog entries.

    `gpus` and `nics` are bus ids of cards that the file gives no class. `nvswitch` joins GPUs of a file that says
    nothing of NVLink, as files of cloud providers do.
    """

    file: Annotated[str, Field(min_length=1)]
    gpu: str = ""
    nic: str = ""
    cpu: str = ""
    pcie_switch: str = "pex89000"
    nvswitch: str = ""
    gpus: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()


class HostGroup(Model):
    """`count` hosts of one catalog type, or of a machine's topology file; named `prefix-0`, `prefix-1`, ..."""

    type: str = ""
    nccl_xml: NcclXml | None = None
    count: Count
    prefix: Name = "host"

    @model_validator(mode="after")
    def _one_kind(self) -> HostGroup:
        if bool(self.type) == (self.nccl_xml is not None):
            got = "both" if self.type else "neither"
            raise ValueError(f"got {got} of type and nccl_xml, expected one, such as type: dgx-h100")
        return self


class Topology(Model):
    """The shape of the network; what is left out follows from the hosts and the switch.

    `radix` is how many ports of a switch are used, `leaf_down` how many of a leaf's go to hosts. With three
    tiers `leaves` and `spines` count one pod's switches, with two tiers all. Rail-optimised, `leaves` counts
    those of one rail, and with three tiers `spines` the switches that these share; `cores` counts all.
    """

    kind: Literal["single-switch", "fat-tree", "rail-optimised"]
    tiers: Literal[2, 3] | None = None
    oversubscription: Ratio = 1.0
    radix: Count | None = None
    leaf_down: Count | None = None
    leaves: Count | None = None
    spines: Count | None = None
    pods: Count | None = None
    cores: Count | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Topology:
        fields = type(self).model_fields
        if self.kind == "single-switch":
            allowed = {"kind", "radix"}
        elif self.tiers == 3:
            allowed = set(fields)
        else:
            allowed = set(fields) - {"pods", "cores"}
        for key in fields:
            if key not in allowed and getattr(self, key) != fields[key].default:
                where = "with kind: single-switch" if self.kind == "single-switch" else "without tiers: 3"
                raise ValueError(f"got {key}, which means nothing {where}")
        return self


IpoibMode = Literal["datagram", "connected"]


def _of_its_technology(network: Any) -> Any:
    if network.qos is not None and network.technology != "ethernet":
        raise ValueError("got qos on InfiniBand, expected it only on Ethernet: credits need none")
    if network.congestion_control is not None and network.technology != "infiniband":
        raise ValueError(
            "got congestion_control on Ethernet, expected it only on InfiniBand; run.packet has control"
        )
    if network.ipoib is not None and network.technology != "infiniband":
        raise ValueError(
            "got ipoib on Ethernet, expected it only on InfiniBand: hosts there have Ethernet interfaces"
        )
    return network


class Network(Model):
    """The generated network: its technology, shape, switches, cables and routing."""

    technology: Technology
    topology: Topology
    switch: str
    link_rate: Annotated[Rate, Field(gt=0)] | None = None
    trunk_rate: Annotated[Rate, Field(gt=0)] | None = None
    host_cable: Length = HOST_CABLE
    trunk_cable: Length = TRUNK_CABLE
    mtu: Mtu = MTU
    routing: Routing = Routing.model_construct()
    qos: Qos | None = None  # Ethernet
    congestion_control: CongestionControl | None = None  # InfiniBand
    ipoib: IpoibMode | None = None  # InfiniBand; of hosts' interfaces in `exec --netns`

    _fitting = model_validator(mode="after")(_of_its_technology)


class GeneratedCluster(Model):
    """Hosts from the catalog in a network of a regular shape."""

    hosts: tuple[HostGroup, ...]
    network: Network

    @field_validator("hosts", mode="before", json_schema_input_type=HostGroup | tuple[HostGroup, ...])
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return [value]
        if not isinstance(value, list | tuple):
            raise ValueError(
                f"got {value!r}, expected a group such as {{type: dgx-h100, count: 4}}, or a list of such"
            )
        if not value:
            raise ValueError("got an empty list, expected at least one group of hosts")
        return value

    @property
    def routing(self) -> Routing:
        return self.network.routing

    @property
    def qos(self) -> Qos | None:
        return self.network.qos

    @property
    def congestion_control(self) -> CongestionControl | None:
        return self.network.congestion_control


class Bind(Model):
    """Recognised hosts whose name matches a glob are catalog hosts of one type.

    `hcas` maps discovered adapters to the catalog host's, by name or index; those not named in it must carry
    the catalog's names.
    """

    match: str
    host: str
    hcas: dict[str, str | Annotated[int, Field(strict=True, ge=0)]] = Field(default_factory=dict)


class SwitchHint(Model):
    """What discovered switches are, where their description and place do not tell."""

    match: str
    type: str | None = None
    tier: Annotated[int, Field(strict=True, ge=1, le=8)] | None = None


class DiscoveredCluster(Model):
    """A real fabric, as `ibnetdiscover` printed it."""

    ibnetdiscover: str
    bind: tuple[Bind, ...] = ()
    switches: tuple[SwitchHint, ...] = ()
    host_cable: Length = HOST_CABLE
    trunk_cable: Length = TRUNK_CABLE
    mtu: Mtu = MTU
    routing: Routing = Routing.model_construct()
    congestion_control: CongestionControl | None = None
    ipoib: IpoibMode | None = None


def _number64(value: object) -> object:
    if isinstance(value, str):
        guid = whole_or_none(value.strip(), most=2**64 - 1, base=16)
        value = value if guid is None else guid
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise ValueError(f"got {quoted(value)}, expected a GUID, such as '0x0c42a103002559fe'")
    return value


Guid = Annotated[
    int,
    BeforeValidator(_number64, json_schema_input_type=str),
    PlainSerializer(lambda v: f"0x{v:016x}", return_type=str),
]
Lid = Annotated[int, Field(strict=True, ge=0, le=65535)]


class ExplicitHost(Model):
    """One host. `nics` may be left out where `type` is a catalog host; without a type they are all it is."""

    name: Name
    type: str = ""
    nics: tuple[Name, ...] = ()
    guids: tuple[Guid, ...] = ()
    lids: tuple[Lid, ...] = ()


class ExplicitSwitch(Model):
    """One switch. `ports` may be left out where `type` is in the catalog."""

    name: Name
    type: str = ""
    ports: Count | None = None
    tier: Annotated[int, Field(strict=True, ge=-1, le=8)] = -1
    pod: Annotated[int, Field(strict=True, ge=-1)] = -1
    guid: Guid = 0
    lid: Lid = 0


class ExplicitAggregation(Model):
    """A SHARP aggregation node inside a switch."""

    name: Name
    guid: Guid = 0
    lid: Lid = 0


class ExplicitIdentity(Model):
    """Who a node says that it is, as it was discovered; `guid` is that of the switch, adapter or aggregation node.

    `node_guid`, `port` and `ports` tell the card that an adapter's port is on; `place` its place in the file
    that it comes from; `links` ports whose width and speed their rate does not tell.
    """

    guid: Guid
    vendor: Annotated[int, Field(strict=True, ge=0, lt=2**32)] = 0
    device: Annotated[int, Field(strict=True, ge=0, lt=2**16)] = 0
    system_guid: Guid
    port_guid: Guid
    description: Annotated[str, Field(max_length=64)] = ""
    node_guid: Guid = 0
    port: Annotated[int, Field(strict=True, ge=1, le=254)] = 1
    ports: Annotated[int, Field(strict=True, ge=1, le=254)] = 1
    lmc: Annotated[int, Field(strict=True, ge=0, le=7)] = 0
    enhanced_port0: bool = True
    router: bool = False
    place: Annotated[int, Field(strict=True, ge=-1)] = -1
    origin: bool = False
    links: tuple[tuple[int, int, str], ...] = ()


class Cable(NamedTuple):
    """`leaf-0/3 - host-0/mlx5_0 ; 200 Gb/s ; 5 m`; rate and length may be left out."""

    a: tuple[str, str]
    b: tuple[str, str]
    rate_bps: int | None
    length_mm: int | None


def parse_cable(value: object) -> Cable:
    """A line of `cables`. Raises ValueError."""
    example = "expected a cable, such as 'leaf-0/3 - host-0/mlx5_0 ; 200 Gb/s ; 5 m'"
    if isinstance(value, Cable):
        return value
    if not isinstance(value, str):
        raise ValueError(f"got {value!r}, {example}")
    ends, *rest = (part.strip() for part in value.split(";"))
    a, dash, b = ends.partition(" - ")
    if not dash or len(rest) > 2:
        raise ValueError(f"got {value!r}, {example}")
    rate = length = None
    for part in rest:
        if part.endswith(("/s", "bps")) and rate is None:
            rate = parse_rate(part)
        elif length is None:
            length = parse_length(part)
        else:
            raise ValueError(f"got {value!r}, {example}")
    if rate == 0:
        raise ValueError(f"got {value!r} with a rate of nothing, {example}")
    return Cable(split_jack(a), split_jack(b), rate, length)


def format_cable(cable: Cable) -> str:
    text = f"{'/'.join(cable.a)} - {'/'.join(cable.b)}"
    if cable.rate_bps is not None:
        text += f" ; {exact_rate(cable.rate_bps)}"
    if cable.length_mm is not None:
        text += f" ; {exact_length(cable.length_mm)}"
    return text


CableLine = Annotated[
    Cable,
    PlainValidator(parse_cable, json_schema_input_type=str),
    PlainSerializer(format_cable, return_type=str),
]


class ExplicitCluster(Model):
    """Every host, switch and cable by itself."""

    technology: Technology
    hosts: tuple[ExplicitHost, ...]
    switches: tuple[ExplicitSwitch, ...] = ()
    aggregations: tuple[ExplicitAggregation, ...] = ()
    cables: tuple[CableLine, ...]
    link_rate: Annotated[Rate, Field(gt=0)] | None = None
    host_cable: Length = HOST_CABLE
    trunk_cable: Length = TRUNK_CABLE
    mtu: Mtu = MTU
    notes: tuple[str, ...] = ()
    identities: tuple[ExplicitIdentity, ...] = ()
    routing: Routing = Routing.model_construct()
    qos: Qos | None = None  # Ethernet
    congestion_control: CongestionControl | None = None  # InfiniBand
    ipoib: IpoibMode | None = None  # InfiniBand

    _fitting = model_validator(mode="after")(_of_its_technology)


_FORMS = {"network": "GeneratedCluster", "ibnetdiscover": "DiscoveredCluster", "cables": "ExplicitCluster"}


def _form(value: Any) -> str:
    """Tell which of the three forms a mapping has, by the key that only one of them has."""
    if isinstance(value, BaseModel):
        return type(value).__name__
    if isinstance(value, Mapping):
        exact = next((form for key, form in _FORMS.items() if key in value), None)
        if exact is not None:
            return exact
        for key in value:  # the nearest of the three, so that a misspelt key is not taken for another form
            near = difflib.get_close_matches(str(key), _FORMS, n=1, cutoff=0.75)
            if near:
                return _FORMS[near[0]]
    return "GeneratedCluster"


Cluster = Annotated[
    Annotated[GeneratedCluster, Tag("GeneratedCluster")]
    | Annotated[DiscoveredCluster, Tag("DiscoveredCluster")]
    | Annotated[ExplicitCluster, Tag("ExplicitCluster")],
    Discriminator(_form),
]
