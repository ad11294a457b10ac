"""An adapter's port by a fabric of a few columns: names, rates, addresses, GIDs (IBTA volume 1, 4.1; RFC 4291)."""

from __future__ import annotations

from types import SimpleNamespace as Record

import numpy as np
import pytest

from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.gid import IB_GID, ROCE_V1, ROCE_V2

GUID = 0x0200_00FF_FE12_3456


def adapter(index=1, *, technology="ethernet", port=(4, 7), peer=3, mtu=4096, rates=None):
    """The second adapter of the second host."""
    fabric = Record(
        nic_node=np.array([5, 6]), node_host=np.array([0] * 6 + [1]), host_names=["a", "b"],
        node_name=lambda node: {5: "a/mlx5_0", 6: "b/mlx5_1"}[node], type_names=["x", "connectx"],
        node_type=np.array([0] * 6 + [1]), nic_port=np.array(port), node_plane=np.array([0] * 6 + [2]),
        node_guid=np.array([0] * 6 + [GUID]), technology=technology, port_peer=np.array([0] * 7 + [peer]),
        port_rate_bps=np.array([1] * 7 + [400]), mtu_bytes=mtu,
    )  # fmt: skip
    routes = Record(lid=np.array([0] * 6 + [77]))
    twin = Record(link_rate_bps=rates or {})
    return Adapter(Record(fabric=fabric, twin=twin, routes=routes, note_change=lambda: None), index)


def test_an_adapter_has_its_place_its_names_and_nothing_else_yet():
    made = adapter()
    assert (made.index, made.node, made.host, made.host_name, made.name) == (1, 6, 1, "b", "mlx5_1")
    assert (made.type_name, made.port, made.plane, made.guid) == ("connectx", 7, 2, GUID)
    assert (made.queue_pairs, made.shared_receives, made.pkey_violations, made.qkey_violations) == ({}, {}, 0, 0)
    assert made.pkeys == [0xFFFF] + [0] * 127
    assert made.roce_mode == ROCE_V2
    assert [made.new_number() for _ in range(3)] == [0x41, 0x42, 0x43]
    made._numbers = 0xFFFFFF
    assert made.new_number() == 0


@pytest.mark.parametrize(
    ("more", "cabled", "rate"),
    [({}, True, 400), ({"peer": -1}, False, 0), ({"port": (4, -1)}, False, 0), ({"rates": {7: 100}}, True, 100),
     ({"rates": {7: 0}}, True, 0), ({"rates": {6: 5}}, True, 400), ({"peer": -1, "rates": {7: 9}}, False, 0),
     ({"peer": 0}, True, 400)],
)  # fmt: skip
def test_a_port_has_its_rate_while_it_has_a_cable(more, cabled, rate):
    made = adapter(**more)
    assert (made.cabled, made.rate_bps, made.active) == (cabled, rate, rate > 0)


@pytest.mark.parametrize(
    ("mtu", "path"),
    [(9000, 4096), (4096, 4096), (4095, 2048), (2048, 2048), (1500, 1024), (256, 256), (255, 256), (600, 512)],
)
def test_a_path_mtu_is_the_largest_of_five_that_fits(mtu, path):
    assert adapter(mtu=mtu).mtu_bytes == path


def test_infiniband_has_a_lid_and_one_gid():
    made = adapter(technology="infiniband")
    assert (made.ethernet, made.lid, made.gid_table_length) == (False, 77, 8)
    (gid,) = made.gids
    assert (gid.raw, gid.kind) == (b"\xfe\x80" + bytes(6) + GUID.to_bytes(8, "big"), IB_GID)
    assert [made.gid_index(kind) for kind in (IB_GID, ROCE_V1, ROCE_V2)] == [0, 0, 0]


def test_ethernet_has_link_local_and_ipv4_gids_of_both_versions():
    """The MAC is the GUID without its middle; its universal bit is turned, as RFC 4291 has it."""
    made = adapter()
    mac = bytes.fromhex("020000123456")
    assert (made.ethernet, made.lid, made.mac, made.gid_table_length) == (True, 0, mac, 256)
    local = b"\xfe\x80" + bytes(6) + bytes.fromhex("000000fffe123456")
    mapped = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 2])  # the second adapter: 10.0.0.2
    assert [(gid.raw, gid.kind) for gid in made.gids] == [
        (local, ROCE_V1), (local, ROCE_V2), (mapped, ROCE_V1), (mapped, ROCE_V2)
    ]  # fmt: skip
    assert made.ipv4 == bytes([10, 0, 0, 2])
    assert (made.gid_index(ROCE_V1), made.gid_index(ROCE_V2)) == (2, 3)
