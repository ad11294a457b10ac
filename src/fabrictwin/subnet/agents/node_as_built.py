"""Identity of a node as it leaves the factory: description, NodeInfo, what a switch has room for."""

from __future__ import annotations

from fabrictwin.fabric.fabric import Fabric, NodeKind
from fabrictwin.subnet.wire.smp import NodeInfo, NodeType, SwitchInfo

LINEAR_CAP = 0xC000  # every unicast LID
MULTICAST_CAP = 0x3FFF  # every multicast LID: 0xFFFF is the permissive one
PKEYS = {NodeType.CA: 128, NodeType.SWITCH: 32, NodeType.ROUTER: 128}
SWITCH_PORT_PKEYS = 32

_VENDOR = 0x02C9
_DEVICES = {"connectx-6": 0x101B, "connectx-7": 0x1021, "qm8700": 0xD2F0, "qm9700": 0xD2F2}
_AGGREGATION_DEVICE = 0xCF08
_AGGREGATION_NAME = "Mellanox Technologies Aggregation Node"


def describe(fabric: Fabric, node: int) -> bytes:
    """NodeDescription, as a host's software or a switch's sets it."""
    known = fabric.identities.get(int(fabric.node_guid[node]))
    if known is not None:
        return known.description.encode()[:64]
    kind = fabric.node_kind[node]
    if kind == NodeKind.AGGREGATION:
        return _AGGREGATION_NAME.encode()
    name = fabric.node_name(node)
    if kind == NodeKind.NIC:
        return name.replace("/", " ").encode()[:64]  # "host device", as Linux sets it
    model = fabric.type_names[fabric.node_type[node]]
    return (f"MF0;{name}:M{model.upper()}/U1" if model else name).encode()[:64]


def node_info(fabric: Fabric, node: int, *, ports: int, port_guid: int) -> NodeInfo:
    """Return NodeInfo of a node with so many ports, whose first port has that GUID."""
    is_switch = fabric.node_kind[node] == NodeKind.SWITCH
    guid = int(fabric.node_guid[node])
    kind = fabric.type_names[fabric.node_type[node]]
    device = _DEVICES.get(kind, 0xD2F0 if is_switch else 0x101B)
    if fabric.node_kind[node] == NodeKind.AGGREGATION:
        device = _AGGREGATION_DEVICE
    known = fabric.identities.get(guid)
    kind_code = NodeType.SWITCH if is_switch else NodeType.ROUTER if known and known.router else NodeType.CA
    return NodeInfo(
        node_type=kind_code,
        num_ports=ports,
        system_image_guid=known.system_guid if known else guid,
        node_guid=known.node_guid if known and known.node_guid else guid,
        port_guid=port_guid,
        partition_cap=PKEYS[kind_code],
        device_id=known.device if known and known.vendor else device,
        vendor_id=known.vendor if known and known.vendor else _VENDOR,
    )


def switch_as_built(fabric: Fabric, node: int) -> SwitchInfo:
    """Return SwitchInfo of a switch that powers on."""
    known = fabric.identities.get(int(fabric.node_guid[node]))
    return SwitchInfo(
        linear_fdb_cap=LINEAR_CAP,
        multicast_fdb_cap=MULTICAST_CAP,
        life_time_value=16,
        optimized_sl_to_vl=1,
        partition_enforcement_cap=SWITCH_PORT_PKEYS,
        inbound_enforcement_cap=1,
        outbound_enforcement_cap=1,
        enhanced_port0=int(known is None or known.enhanced_port0),
        multicast_fdb_top=0xBFFF,
    )
