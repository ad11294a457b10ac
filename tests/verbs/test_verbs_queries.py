"""What devices, ports and tables answer when they are asked."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from support.clusters import blueprint, boxes, dgx
from support.sm_fabrics import blueprint as wired
from support.verbs_ends import ALL, End, world

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.twin import Twin
from fabrictwin.verbs import current_host
from fabrictwin.verbs.adapter.qp_checks import MTU_BYTES, MTU_CODES, RNR_TIMER_PS, STATIC_RATE_MBPS, timeout_ps
from fabrictwin.verbs.connect_pair import connect
from fabrictwin.verbs.gpu import GpuBuffer
from fabrictwin.verbs.pyverbs import enums as e
from fabrictwin.verbs.pyverbs.device import Context, get_device_list, rdma_get_devices
from fabrictwin.verbs.pyverbs.pyverbs_error import PyverbsRDMAError


@pytest.fixture(params=["infiniband", "ethernet"])
def end(request):
    world(boxes(8, request.param))
    return End("host-0")


SAME = (
    "max_qp", "max_qp_wr", "max_cq", "max_cqe", "max_mr", "max_pd", "max_res_rd_atom", "max_mw", "max_ah",
    "max_srq", "max_srq_wr", "max_srq_sge", "max_pkeys", "local_ca_ack_delay", "vendor_id",
)  # fmt: skip


def test_a_device_has_the_limits_of_its_family(end):
    found, known = end.ctx.query_device(), catalog.verbs_device("mlx5")
    assert {name: getattr(found, name) for name in SAME} == {name: getattr(known, name).value for name in SAME}
    assert found.max_sge == found.max_sge_rd == known.max_sge.value
    assert found.max_qp_rd_atom == found.max_qp_init_rd_atom == 16
    assert (found.atomic_caps, found.phys_port_cnt, found.max_mr_size) == (1, 1, 2**64 - 1)
    assert found.page_size_cap == 2**64 - 4096
    assert found.node_guid == found.sys_image_guid
    assert found.node_guid.to_bytes(8, "little") == end.ctx.adapter.guid.to_bytes(8, "big")
    assert found.vendor_part_id == known.part_ids[end.ctx.adapter.type_name].value
    flags = "BAD_PKEY_CNTR BAD_QKEY_CNTR CURR_QP_STATE_MOD SYS_IMAGE_GUID RC_RNR_NAK_GEN SRQ_RESIZE MEM_WINDOW XRC"
    bits = [getattr(e, f"IBV_DEVICE_{name}") for name in (*flags.split(), "MEM_WINDOW_TYPE_2B")]
    assert found.device_cap_flags == sum(bits)
    assert found.fw_version.count(".") >= 1
    nothing = {name for name in vars(type(found)) if name.startswith("max_") and not getattr(found, name)}
    assert nothing == {
        "max_ee_rd_atom", "max_ee_init_rd_atom", "max_ee", "max_rdd", "max_raw_ipv6_qps", "max_raw_ethy_qp",
        "max_mcast_grp", "max_mcast_qp_attach", "max_fmr", "max_map_per_fmr",
    }  # fmt: skip


def test_a_device_says_more_by_the_extended_call(end):
    found = end.ctx.query_device_ex()
    assert (found.completion_timestamp_mask, found.hca_core_clock) == (2**64 - 1, 10**6)
    assert found.device_cap_flags_ex == found.orig_attr.device_cap_flags
    assert (found.comp_mask, found.max_dm_size, found.raw_packet_caps, found.max_wq_type_rq) == (0, 0, 0, 0)
    assert found.phys_port_cnt_ex == 1
    for caps in (
        found.odp_caps, found.tso_caps, found.pci_atomic_caps, found.rss_caps, found.packet_pacing_caps,
        found.tm_caps, found.cq_mod_caps,
    ):  # fmt: skip
        fields = {name: value for name, value in vars(type(caps)).items() if isinstance(value, int)}
        assert set(fields.values()) <= {0}


def test_a_port_says_its_link(end):
    ethernet = end.ctx.adapter.ethernet
    port = end.ctx.query_port(1)
    assert (port.state, port.phys_state) == (e.IBV_PORT_ACTIVE, 5)
    assert (port.max_mtu, port.active_mtu) == (5, MTU_CODES[end.ctx.adapter.mtu_bytes])
    assert (port.gid_tbl_len, port.pkey_tbl_len) == (256 if ethernet else 8, 128)
    assert port.max_msg_sz == catalog.verbs_device("mlx5").max_message.value
    assert (port.bad_pkey_cntr, port.qkey_viol_cntr, port.flags) == (0, 0, int(ethernet))
    assert port.link_layer == (2 if ethernet else 1)
    assert port.port_cap_flags == 0x10000 | 0x4000 | (0x4000000 if ethernet else 0)
    lanes = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[port.active_width]
    lane_gbps = {1: 2, 2: 4, 4: 8, 16: 14, 32: 25, 64: 50, 128: 100, 256: 200}[
        port.active_speed_ex or port.active_speed
    ]
    assert lanes * lane_gbps * 10**9 == pytest.approx(end.ctx.adapter.rate_bps, rel=0.03)
    assert end.ctx.query_port_speed(1) == end.ctx.adapter.rate_bps // 10**6
    if ethernet:
        assert (port.lid, port.sm_lid, port.lmc, port.subnet_timeout, port.max_vl_num) == (0, 0, 0, 0, 0)
    else:
        first = end.ctx.world.adapters[0]
        assert (port.lid, port.sm_lid, port.lmc) == (end.ctx.adapter.lid, first.lid, 0)
        assert (port.subnet_timeout, port.max_vl_num) == (18, 4)
    assert end.ctx.num_comp_vectors == 63
    for wrong in (0, 2):
        for query in (end.ctx.query_port, end.ctx.query_port_speed):
            with pytest.raises(PyverbsRDMAError) as error:
                query(wrong)
            assert error.value.error_code == errno.EINVAL


def test_a_port_that_is_down_says_so():
    twin = Twin(blueprint(2, "pcie-box"))
    one = world(twin)
    end = End("host-0")
    one.twin.link_rate_bps[end.ctx.adapter.port] = 0
    port = end.ctx.query_port(1)
    assert (port.state, port.phys_state) == (e.IBV_PORT_DOWN, 3)
    assert (port.active_width, port.active_speed, port.active_speed_ex) == (2, 1, 0)
    assert not end.ctx.adapter.active


def test_keys_of_partitions(end):
    assert end.ctx.query_pkey(1, 0) == 0xFFFF
    end.ctx.adapter.pkeys[3] = 0x8001
    try:
        assert end.ctx.query_pkey(1, 3) == 0x0180
        assert end.ctx.get_pkey_index(1, 0x8001) == 3
        assert end.ctx.query_pkey(1, 127) == 0
    finally:
        end.ctx.adapter.pkeys[3] = 0
    for port, index in ((1, 128), (1, -1), (2, 0)):
        with pytest.raises(PyverbsRDMAError) as error:
            end.ctx.query_pkey(port, index)
        assert error.value.error_code == errno.EINVAL
    for port, key in ((1, 0x1234), (2, 0xFFFF)):
        with pytest.raises(PyverbsRDMAError) as error:
            end.ctx.get_pkey_index(port, key)
        assert error.value.error_code == errno.ENOENT


def test_gids_of_a_port(end):
    adapter = end.ctx.adapter
    guid = adapter.guid.to_bytes(8, "big")
    table = end.ctx.query_gid_table(8)
    if not adapter.ethernet:
        expected, kinds = [bytes.fromhex("fe80000000000000") + guid], [0]
    else:
        mac = guid[:3] + guid[5:]
        # RFC 4291, appendix A: the universal bit turned over, ff:fe in the middle
        local = bytes.fromhex("fe80000000000000") + bytes([mac[0] ^ 2, mac[1], mac[2], 0xFF, 0xFE]) + mac[3:]
        mapped = bytes(10) + b"\xff\xff" + adapter.ipv4
        expected, kinds = [local, local, mapped, mapped], [1, 2, 1, 2]
    assert [bytes.fromhex(entry.gid_str().replace(":", "")) for entry in table] == expected
    assert [entry.gid_type for entry in table] == kinds
    assert [entry.gid_index for entry in table] == list(range(len(expected)))
    assert {entry.port_num for entry in table} == {1}
    assert {entry.ndev_ifindex for entry in table} == {adapter.index + 1 if adapter.ethernet else 0}
    for index, raw in enumerate(expected):
        assert end.ctx.query_gid(1, index).raw == raw
        assert end.ctx.query_gid_type(1, index) == int(kinds[index] == 2)
        assert end.ctx.query_gid_ex(1, index).gid_str() == table[index].gid_str()
        assert table[index].gid_subnet_prefix.to_bytes(8, "little") == raw[:8]
        assert table[index].gid_interface_id.to_bytes(8, "little") == raw[8:]
    size, used = adapter.gid_table_length, len(expected)
    assert end.ctx.query_gid(1, size - 1).raw == bytes(16)
    for query, port, index, code in (
        (end.ctx.query_gid, 1, size, errno.EINVAL),
        (end.ctx.query_gid, 1, -1, errno.EINVAL),
        (end.ctx.query_gid, 2, 0, errno.EINVAL),
        (end.ctx.query_gid_type, 1, used, errno.EINVAL),
        (end.ctx.query_gid_type, 1, -1, errno.EINVAL),
        (end.ctx.query_gid_type, 2, 0, errno.EINVAL),
        (end.ctx.query_gid_ex, 1, used, errno.ENODATA),
        (end.ctx.query_gid_ex, 1, size, errno.EINVAL),
        (end.ctx.query_gid_ex, 2, 0, errno.EINVAL),
    ):
        with pytest.raises(PyverbsRDMAError) as error:
            query(port, index)
        assert error.value.error_code == code
    assert len(end.ctx.query_gid_table(used)) == used
    with pytest.raises(PyverbsRDMAError) as error:
        end.ctx.query_gid_table(used - 1)
    assert error.value.error_code == -errno.EINVAL
    assert adapter.gid_index(2) == (3 if adapter.ethernet else 0)
    assert adapter.gid_index(1) == (2 if adapter.ethernet else 0)
    assert len(adapter.mac) == 6


def test_devices_are_found_by_name_and_host(end):
    assert [device.name for device in get_device_list()] == [b"mlx5_0"]
    (device,) = get_device_list("host-3")
    assert (device.guid, device.node_type, device.transport_type) == (
        Context(name="host-3/mlx5_0").adapter.guid,
        1,
        0,
    )
    assert (device.index, [d.name for d in rdma_get_devices()]) == (3, [b"mlx5_0"])
    assert Context(name="mlx5_0").adapter.host_name == "host-0"
    assert Context(name="mlx5_0", host="host-5").adapter.host_name == "host-5"
    for name in ("nobody/mlx5_0", "host-1/mlx5_1", "mlx5_1"):
        with pytest.raises(PyverbsRDMAError):
            Context(name=name)
    with pytest.raises(ConfigError, match="host-0"):
        current_host.adapters("host-00")
    assert current_host.local_host() == "host-0"
    current_host.use(boxes(8), host="host-2", engine="analytic")
    assert current_host.local_host() == "host-2"
    with pytest.raises(ConfigError):
        current_host.use(boxes(8), host="host-9", engine="analytic")
    assert current_host.local_host() == "host-2"
    assert end.ctx.name == "mlx5_0"


def test_a_rail_s_adapters_have_names_numbers_and_addresses_of_their_own():
    here = world(dgx(4))
    adapters = here.host("host-1")
    assert len({adapter.name for adapter in adapters}) == len(adapters) >= 8
    assert all(adapter.name.startswith("mlx5_") for adapter in adapters)
    assert len({adapter.guid for adapter in here.adapters}) == len(here.adapters)
    assert len({adapter.lid for adapter in here.adapters}) == len(here.adapters)
    for adapter in adapters:
        assert here.by_lid(adapter.plane, adapter.lid) is adapter
        assert here.by_gid(adapter.gids[0].raw) is adapter
    assert here.by_lid(0, 0) is None
    assert here.by_gid(bytes(16)) is None
    numbers = [adapters[0].new_number() for _ in range(3)]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert all(0 < number < 2**24 for number in numbers)


def test_time_passes_as_it_is_told():
    here = world(boxes(2))
    done: list[int] = []
    for delay in (300, 100, 200, 100):
        here.after(delay, lambda delay=delay: done.append(delay))
    assert not here.idle
    here.advance(250)
    assert done == [100, 100, 200]
    assert here.now_ps == 250
    here.settle()
    assert (done[-1], here.idle) == (300, True)
    assert not here.run_until(lambda: False)
    assert here.run_until(lambda: True)
    end = End("host-0")
    assert end.ctx.query_rt_values_ex() == divmod(here.now_ps // 1000, 10**9)
    here.after(5 * 10**12, lambda: None)
    here.settle()
    assert end.ctx.query_rt_values_ex() == (5, here.now_ps // 1000 % 10**9)


def test_codes_of_attributes():
    """IBTA volume 1: MTU, the receiver-not-ready timer (table 45), the acknowledgement timeout (9.7.5.2)."""
    assert MTU_BYTES == {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
    assert {size: code for code, size in MTU_BYTES.items()} == MTU_CODES
    milliseconds = (
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56,
        3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
    )  # fmt: skip
    assert [t / 1e9 for t in RNR_TIMER_PS] == list(milliseconds)
    assert timeout_ps(0) == 0
    assert [timeout_ps(code) for code in (1, 14, 31)] == [4_096_000 * 2**code for code in (1, 14, 31)]
    # ibv_rate, as ibv_rate_to_mbps reads it where lanes have 2.5 to 100 Gb/s
    named = {2: 2.5, 3: 10, 4: 30, 5: 5, 6: 20, 7: 40, 8: 60, 9: 80, 10: 120, 11: 14, 12: 56, 13: 112, 14: 168,
             15: 25, 16: 100, 17: 200, 18: 300, 19: 28, 20: 50, 21: 400, 22: 600, 23: 800, 24: 1200}  # fmt: skip
    assert {code: mbps / 1000 for code, mbps in STATIC_RATE_MBPS.items()} == named


def test_two_queue_pairs_are_connected_as_librdmacm_would(end):
    other = End("host-7")
    connect(end.qp, other.qp, access=ALL)
    for own, far in ((end, other), (other, end)):
        attr, _ = own.qp.query(0)
        assert (attr.qp_state, attr.dest_qp_num, attr.qp_access_flags) == (3, far.qp.qp_num, ALL)
        assert (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) == (14, 7, 7, 12)
        assert (attr.max_rd_atomic, attr.max_dest_rd_atomic) == (16, 16)
        assert attr.path_mtu == MTU_CODES[own.ctx.adapter.mtu_bytes]
        vector = attr.ah_attr.vector()
        assert (vector.dlid, vector.is_global) == (far.ctx.adapter.lid, own.ctx.adapter.ethernet)
        if own.ctx.adapter.ethernet:
            assert (vector.hop_limit, vector.sgid_index) == (64, 3)
            assert vector.dgid == far.ctx.adapter.gids[3].raw
    end.send(e.IBV_WR_RDMA_READ, remote=other)
    assert end.statuses() == [0]


def test_connected_with_less():
    world(boxes(8))
    one, other = End("host-0"), End("host-7")
    connect(one.qp, other.qp, mtu_bytes=512, reads=3)
    attr, _ = one.qp.query(0)
    assert (attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic) == (2, 3, 3)
    again, far = End("host-0"), End("host-7")
    connect(again.qp, far.qp, reads=99)
    assert again.qp.query(0)[0].max_rd_atomic == 16


def test_memory_of_gpus():
    here = world(dgx(4))
    ctx = Context(name="mlx5_0", host="host-1")
    buffers = [GpuBuffer(ctx, 64, gpu=gpu) for gpu in range(8)]
    assert len({buffer.node for buffer in buffers}) == 8
    assert {here.fabric.node_host[buffer.node] for buffer in buffers} == {1}
    assert all(buffer.gpudirect and buffer.staging is None for buffer in buffers)
    assert (buffers[0].array.nbytes, buffers[0].array.any()) == (64, False)
    assert buffers[0].address == buffers[0].array.ctypes.data
    staged = GpuBuffer(ctx, 64, gpudirect=False)
    assert not staged.gpudirect
    assert staged.staging is not None
    for wrong in (-1, 8):
        with pytest.raises(ConfigError, match="one of the 8"):
            GpuBuffer(ctx, 64, gpu=wrong)


@pytest.mark.parametrize("gpudirect", [True, False])
def test_a_copy_through_host_memory_takes_its_time(gpudirect):
    from fabrictwin.verbs.pyverbs.mr import MR

    here = world(dgx(4))
    one, other = End("host-0", size=1 << 20), End("host-1")
    buffer = GpuBuffer(other.ctx, 1 << 20, gpudirect=gpudirect)
    region = MR(other.pd, 1 << 20, ALL, address=buffer)
    assert here.places_memory
    connect(one.qp, other.qp, access=ALL)
    one.mr.write(b"gpu", 3)
    one.send(e.IBV_WR_RDMA_WRITE, length=1 << 20, remote=other, rkey=region.rkey, at=region.buf - other.mr.buf)
    assert one.statuses() == [0]
    here.settle()
    assert buffer.array[:4].tobytes() == b"gpu\0"
    wire_ps = (1 << 20) * 8 * 10**12 // one.ctx.adapter.rate_bps
    assert here.now_ps >= wire_ps + (0 if gpudirect else buffer.staging.copy_ps(1 << 20))


def test_a_copy_is_pieces_latency_and_rate():
    from fabrictwin.verbs.adapter.staging import Staging

    peer_flow = Staging(latency_ps=700, rate_bps=8 * 10**12, piece_bytes=100, piece_ps=30)
    assert [peer_flow.copy_ps(size) for size in (0, 1, 100, 101, 250)] == [
        0, 30 + 700 + 1, 30 + 700 + 100, 60 + 700 + 101, 90 + 700 + 250
    ]  # fmt: skip


@pytest.mark.parametrize(("size", "code"), [("512 B", 2), ("1024 B", 3), ("2 KiB", 4), ("4 KiB", 5)])
def test_a_ports_mtu_is_the_fabrics(size, code):
    shape = {"kind": "fat-tree", "tiers": 2, "leaf_down": 4}
    world(Twin(blueprint(4, "pcie-box", topology=shape, mtu=size)))
    assert End("host-0").ctx.query_port(1).active_mtu == code


def test_a_port_knows_the_manager_of_its_own_subnet():
    """It runs on the first adapter with a cable of each subnet, as long as nobody says otherwise."""
    hosts = ["idle", "a", "b", "c", "d"]
    cables = [("left", 1, "a", 1), ("left", 2, "b", 1), ("right", 1, "c", 1), ("right", 2, "d", 1)]
    plan = wired([("left", 4), ("right", 4)], hosts, cables)
    lids = {"idle": 30, "a": 31, "b": 32, "c": 33, "d": 34}
    world(Twin(replace(plan, hosts=tuple(replace(host, lids=(lids[host.name],)) for host in plan.hosts))))
    told = {host: Context(name="mlx5_0", host=host).query_port(1).sm_lid for host in hosts}
    assert told == {"idle": 0, "a": 31, "b": 31, "c": 33, "d": 33}
