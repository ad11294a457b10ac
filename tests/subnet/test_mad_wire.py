"""Management datagrams: every attribute against an independent reading of its table, and any bytes at all."""

from __future__ import annotations

import struct
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wire_attributes import attributes_of

from fabrictwin.subnet.wire import header, notice, sa, smp
from fabrictwin.subnet.wire import link_encodings as speeds
from fabrictwin.subnet.wire import pm as perf
from fabrictwin.subnet.wire.fields import Attribute, Field, MadError

ALL = [kind for module in (smp, perf, notice, sa, header) for kind in attributes_of(module)]


def values_of(kind: type[Attribute]) -> st.SearchStrategy[dict[str, object]]:
    parts: dict[str, st.SearchStrategy[object]] = {}
    for part in fields(kind):
        place = part.metadata["place"]
        if place.is_bytes:
            parts[part.name] = st.binary(min_size=place.width // 8, max_size=place.width // 8)
        elif place.count:
            one = st.integers(0, 2**place.width - 1)
            parts[part.name] = st.tuples(*[one] * place.count)
        else:
            parts[part.name] = st.integers(0, 2**place.width - 1)
    return st.fixed_dictionaries(parts)


def bit_string(kind: type[Attribute], values: dict[str, object]) -> bytes:
    """The oracle: the attribute as a string of zeros and ones, each field written where its table says."""
    text = ["0"] * (8 * kind.SIZE)
    for part in fields(kind):
        place, value = part.metadata["place"], values[part.name]
        if place.is_bytes:
            value, width = int.from_bytes(value, "big"), place.width
            text[place.offset : place.offset + width] = f"{value:0{width}b}"
            continue
        for i, one in enumerate(value if place.count else (value,)):
            at = place.offset + i * place.stride
            text[at : at + place.width] = f"{one:0{place.width}b}"
    return int("".join(text), 2).to_bytes(kind.SIZE, "big")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_every_attribute_encodes_as_its_table_says_and_decodes_back(kind, data):
    values = data.draw(values_of(kind))
    attribute = kind(**values)
    encoded = attribute.encode()
    assert encoded == bit_string(kind, values)
    assert kind.decode(encoded) == attribute


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_no_two_fields_share_a_bit(kind):
    seen: set[int] = set()
    for part in fields(kind):
        place = part.metadata["place"]
        for i in range(place.count or 1):
            mine = set(range(place.offset + i * place.stride, place.offset + i * place.stride + place.width))
            assert not mine & seen, part.name
            seen |= mine
    assert max(seen) < 8 * kind.SIZE


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.binary(max_size=300), at=st.integers(0, 80))
def test_any_bytes_decode_or_raise_the_rooms_own_error(kind, data, at):
    try:
        decoded = kind.decode(data, at)
    except MadError:
        assert len(data) - at < kind.SIZE
    else:
        assert kind.decode(decoded.encode()) == decoded


@pytest.mark.parametrize("value", [-1, 256, None, "1", 1.5, (1,), b"\x00"])
def test_a_value_that_does_not_fit_is_refused(value):
    with pytest.raises(MadError):
        smp.NodeInfo(num_ports=value).encode()


@pytest.mark.parametrize("value", [(), (1,) * 15, (16,) * 16, None, (None,) * 16, 7])
def test_an_array_that_does_not_fit_is_refused(value):
    with pytest.raises(MadError):
        smp.SlToVl(vls=value).encode()


def test_a_field_reads_and_writes_in_place():
    info = smp.PortInfo(port_state=4, lmc=5, subnet_timeout=18, client_reregister=1, m_key_protect_bits=2)
    data = bytearray(b"\xee" * 3 + info.encode())
    lmc = Field(smp.PortInfo, "lmc", 3)
    assert lmc.get(data) == 5
    lmc.put(data, 2)
    assert smp.PortInfo.decode(data, 3) == smp.PortInfo(
        port_state=4, lmc=2, subnet_timeout=18, client_reregister=1, m_key_protect_bits=2
    )


def test_known_bytes_of_a_port_info():
    """Byte positions as rdma-core's decoder reads them."""
    data = bytearray(64)
    data[29], data[30], data[31], data[32], data[35] = 1, 2, 16, 0x74, 0x42
    data[56], data[62], data[63] = 0x52, 0x88, 0x1F
    info = smp.PortInfo.decode(data)
    assert (info.link_width_enabled, info.link_width_supported, info.link_width_active) == (1, 2, 16)
    assert (info.link_speed_supported, info.link_speed_active, info.link_speed_enabled) == (7, 4, 2)
    assert (info.link_speed_ext_active, info.link_speed_ext_supported) == (8, 8)
    assert info.link_speed_ext_enabled == 31
    ext2 = (info.link_speed_ext2_active, info.link_speed_ext2_supported, info.link_speed_ext2_enabled)
    assert ext2 == (2, 2, 2)


def test_known_bytes_of_discard_details():
    """PortXmitDiscardDetails (IBTA volume 1, section 16.1): four counters of 16 bits after the selection."""
    data = struct.pack(">BBH4H", 0, 7, 0xF, 1, 2, 3, 4)
    found = perf.XmitDiscardDetails.decode(data)
    assert (found.port_select, found.counter_select) == (7, 0xF)
    assert (found.inactive_discards, found.neighbor_mtu_discards) == (1, 2)
    assert (found.lifetime_limit_discards, found.hoq_lifetime_limit_discards) == (3, 4)
    assert found.encode()[: len(data)] == data


def test_the_packed_header_of_the_hot_path_is_the_table():
    smp_mad = header.DirectedSmp(
        method=2, direction=1, status=28, hop_pointer=3, hop_count=4, tid=2**63 + 5, attribute=0x15,
        modifier=0x80000007, m_key=99, dr_slid=7, dr_dlid=8, data=b"d" * 64, initial_path=b"i" * 64,
        return_path=b"r" * 64,
    )  # fmt: skip
    packed = header.DIRECTED.pack(
        1, 0x81, 1, 2, 0x8000 | 28, 3, 4, 2**63 + 5, 0x15, 0x80000007, 99, 7, 8, b"d" * 64, b"i" * 64, b"r" * 64
    )
    assert packed == smp_mad.encode()
    start = header.START.unpack_from(packed)
    assert start[3] == 2
    assert start[6:] == (2**63 + 5, 0x15, 0x80000007, 99)
    assert header.DIRECTED.size == header.MAD_BYTES


@given(st.binary(max_size=300))
def test_a_datagram_that_no_class_takes_is_refused(data):
    try:
        header.check_mad(data)
    except MadError:
        return
    assert len(data) == header.MAD_BYTES
    assert data[0] == 1
    assert data[2] <= 2


def test_component_bits_are_those_of_the_architecture():
    assert sa.component_mask(sa.NodeRecord, "info.node_type", "info.port_guid", "description") == (
        1 << 4 | 1 << 8 | 1 << 14
    )
    assert sa.component_mask(sa.PathRecord, "dgid", "sgid", "num_path", "mtu", "rate", "sl") == (
        1 << 2 | 1 << 3 | 1 << 12 | 1 << 17 | 1 << 19 | 1 << 15
    )
    assert sa.component_mask(sa.PortInfoRecord, "info.lmc", "info.mtu_cap", "info.guid_cap") == (
        1 << 20 | 1 << 31 | 1 << 42
    )
    assert sa.component_mask(sa.McMemberRecord, "mgid", "join_state", "proxy_join") == 1 | 1 << 16 | 1 << 17
    assert sa.component_mask(sa.ServiceRecord, "service_id", "name", "data64[1]") == 1 | 1 << 6 | 1 << 36
    assert sa.components(sa.PathRecord, 1 << 12 | 1 << 2) == ["dgid", "num_path"]


def test_records_are_padded_to_words_of_eight_bytes():
    sizes = {kind.__name__: len(sa.record_bytes(kind())) // 8 for kind in attributes_of(sa)}
    assert sizes["NodeRecord"] == 14
    assert sizes["PortInfoRecord"] == 9
    assert sizes["LinkRecord"] == 1
    assert sizes["PathRecord"] == 8
    assert sizes["McMemberRecord"] == 7
    assert sizes["ServiceRecord"] == 22


def test_rates_are_read_back_as_width_and_speed():
    for speed in speeds.Speed:
        for width in (1, 2, 4, 8, 12):
            again = speeds.link_of(speeds.rate_of(width, speed))
            assert speeds.rate_of(*again) == speeds.rate_of(width, speed)
            assert again == (width, speed) or width != 4
    assert speeds.link_of(400 * 10**9) == (4, speeds.Speed.NDR)
    assert speeds.rate_code(4, speeds.Speed.HDR) == 17
    assert speeds.rate_code(4, speeds.Speed.NDR) == 21
    assert speeds.rate_code(4, speeds.Speed.XDR) == 23
    assert [speeds.mtu_code(n) for n in (256, 512, 1024, 2048, 4096)] == [1, 2, 3, 4, 5]
    assert [speeds.mtu_of(n) for n in range(1, 6)] == [256, 512, 1024, 2048, 4096]


@given(st.sampled_from(list(speeds.Speed)))
def test_speed_fields_read_back(speed):
    active = speeds.active_fields(speed)
    assert speeds.read_speed(active.first, active.extended, active.extended2, active.vendor) == speed
    can = speeds.supported_fields(speed)
    assert speeds.fastest_common(can.first, can.extended, can.extended2, can.vendor, speeds.Speed.XDR) == speed


def test_big_endian_on_the_wire():
    assert smp.SmInfo(guid=1, act_count=2, priority=3, sm_state=4).encode() == struct.pack(
        ">QQIB3x", 1, 0, 2, 0x34
    )
