"""Numbers that go over the wire: places of fields as libibmad finds them, and codes of IBTA volume 1,
    chapters 13 to
16, written down once more. `wire_layouts.txt` says where each place is from."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from support.wire_attributes import attributes_of

from fabrictwin.subnet.wire import congestion, header, notice, pm, rmpp, sa, smp
from fabrictwin.subnet.wire import link_encodings as links
from fabrictwin.subnet.wire.fields import Field, MadError
from fabrictwin.subnet.wire.link_encodings import Speed


def layouts() -> dict[str, list[list[str]]]:
    """By attribute: its size and number, then its fields with their places."""
    found: dict[str, list[list[str]]] = {}
    for line in (Path(__file__).parent / "wire_layouts.txt").read_text().splitlines():
        words = line.split()
        if line.startswith("  "):
            found[list(found)[-1]].append(words)
        elif words[0] != "#":
            found[words[0]] = [words[1:]]
    return found


LAYOUTS = layouts()
ALL = {
    kind.__name__: kind for module in (smp, pm, notice, sa, congestion, header) for kind in attributes_of(module)
}


def test_every_attribute_is_in_the_table():
    assert set(ALL) == set(LAYOUTS)


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_fields_stand_where_libibmad_reads_them(name):
    (size, number), *expected = LAYOUTS[name]
    kind = ALL[name]
    assert (int(size), int(number)) == (kind.SIZE, kind.ID)
    found = {}
    for part in fields(kind):
        place = part.metadata["place"]
        array = [f"x{place.count}", f"/{place.stride}"] if place.count else []
        found[part.name] = [str(place.offset), str(place.width), *array]
        last = place.offset + (max(place.count, 1) - 1) * place.stride + place.width
        assert place.end == last <= 8 * kind.SIZE
    assert found == {
        part: [word for word in place if word[0].isdigit() or word[0] in "x/"] for part, *place in expected
    }


@pytest.mark.parametrize("kind", list(ALL.values()), ids=list(ALL))
def test_what_is_not_said_is_zero(kind):
    said = {"base_version": 1, "class_version": 1} if kind.__module__ == header.__name__ else {}
    said |= {
        "DirectedSmp": {"mgmt_class": 0x81, "dr_slid": 0xFFFF, "dr_dlid": 0xFFFF},
        "LidSmp": {"mgmt_class": 1},
        "PerfMad": {"mgmt_class": 4},
        "SaMad": {"mgmt_class": 3, "class_version": 2},
        "NodeInfo": {"base_version": 1, "class_version": 1},
        "ClassPortInfo": {"base_version": 1, "class_version": 1},
        "CongestionLogSwitch": {"log_type": 1},
        "CongestionLogCa": {"log_type": 2},
        "Notice": {"is_generic": 1},
        "NoticeReport": {"is_generic": 1},
    }.get(kind.__name__, {})
    made = kind()
    for part in fields(kind):
        place, value = part.metadata["place"], getattr(made, part.name)
        if place.is_bytes:
            assert value == bytes(place.width // 8), part.name
        elif place.count:
            assert value == (0,) * place.count, part.name
        else:
            assert value == said.get(part.name, 0), part.name


CODES = {
    header.MadClass: {
        "SUBN_LID": 1, "SUBN_ADM": 3, "PERF": 4, "VENDOR": 0x0A, "CONGESTION": 0x21, "SUBN_DIRECTED": 0x81,
    },
    header.Method: {
        "GET": 1, "SET": 2, "SEND": 3, "TRAP": 5, "REPORT": 6, "TRAP_REPRESS": 7, "GET_TABLE": 0x12,
        "GET_MULTI": 0x14, "DELETE": 0x15, "GET_RESP": 0x81, "REPORT_RESP": 0x86, "GET_TABLE_RESP": 0x92,
        "GET_MULTI_RESP": 0x94, "DELETE_RESP": 0x95,
    },
    header.Status: {
        "OK": 0, "BUSY": 1, "REDIRECT": 2, "BAD_VERSION": 1 << 2, "BAD_METHOD": 2 << 2, "BAD_ATTRIBUTE": 3 << 2,
        "BAD_FIELD": 7 << 2,
    },
    header.SaStatus: {
        "NO_RESOURCES": 1 << 8, "REQUEST_INVALID": 2 << 8, "NO_RECORDS": 3 << 8, "TOO_MANY_RECORDS": 4 << 8,
        "INVALID_GID": 5 << 8, "INSUFFICIENT_COMPONENTS": 6 << 8, "DENIED": 7 << 8,
    },
    smp.AttributeId: {
        "CLASS_PORT_INFO": 1, "NOTICE": 2, "INFORM_INFO": 3, "NODE_DESCRIPTION": 0x10, "NODE_INFO": 0x11,
        "SWITCH_INFO": 0x12, "GUID_INFO": 0x14, "PORT_INFO": 0x15, "PKEY_TABLE": 0x16, "SL_TO_VL": 0x17,
        "VL_ARBITRATION": 0x18, "LINEAR_FORWARDING": 0x19, "MULTICAST_FORWARDING": 0x1B, "SM_INFO": 0x20,
        "EXTENDED_PORT_INFO": 0xFF90,
    },
    smp.NodeType: {"CA": 1, "SWITCH": 2, "ROUTER": 3},
    smp.PortState: {"NO_CHANGE": 0, "DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4},
    smp.PhysState: {
        "NO_CHANGE": 0, "SLEEP": 1, "POLLING": 2, "DISABLED": 3, "TRAINING": 4, "LINK_UP": 5, "RECOVERY": 6,
    },
    smp.SmState: {"NOT_ACTIVE": 0, "DISCOVERING": 1, "STANDBY": 2, "MASTER": 3},
    pm.PerfId: {
        "CLASS_PORT_INFO": 1, "PORT_COUNTERS": 0x12, "RCV_ERROR_DETAILS": 0x15, "XMIT_DISCARD_DETAILS": 0x16,
        "OP_RCV_COUNTERS": 0x17, "FLOW_CONTROL_COUNTERS": 0x18, "VL_OP_PACKETS": 0x19, "VL_OP_DATA": 0x1A,
        "VL_XMIT_FLOW_CONTROL_ERRORS": 0x1B, "VL_XMIT_WAIT": 0x1C, "PORT_COUNTERS_EXTENDED": 0x1D,
        "RCV_CONGESTION_CONTROL": 0x31, "SL_RCV_FECN": 0x32, "SL_RCV_BECN": 0x33, "XMIT_CONGESTION_CONTROL": 0x34,
        "VL_XMIT_TIME_CONGESTED": 0x35,
    },
    pm.PerfCapability: {
        "ALL_PORT_SELECT": 1 << 8, "EXTENDED_WIDTH": 1 << 9, "EXTENDED_WIDTH_NO_IETF": 1 << 10,
        "XMIT_WAIT": 1 << 12,
    },
    notice.Trap: {
        "GID_IN_SERVICE": 64, "GID_OUT_OF_SERVICE": 65, "MULTICAST_GROUP_CREATED": 66,
        "MULTICAST_GROUP_DELETED": 67,
        "LINK_STATE_CHANGE": 128, "LINK_INTEGRITY": 129, "BUFFER_OVERRUN": 130, "FLOW_CONTROL_WATCHDOG": 131,
        "LOCAL_CHANGES": 144, "BAD_P_KEY": 257, "BAD_Q_KEY": 258,
        "BAD_P_KEY_AT_SWITCH": 259,
    },
    congestion.CongestionId: {
        "CLASS_PORT_INFO": 1, "CONGESTION_INFO": 0x11, "CONGESTION_KEY_INFO": 0x12, "CONGESTION_LOG": 0x13,
        "SWITCH_CONGESTION_SETTING": 0x14, "SWITCH_PORT_CONGESTION_SETTING": 0x15,
        "CA_CONGESTION_SETTING": 0x16, "CONGESTION_CONTROL_TABLE": 0x17, "TIMESTAMP": 0x18,
    },
    congestion.LogType: {"SWITCH": 1, "CA": 2},
    notice.NoticeType: {"FATAL": 0, "URGENT": 1, "SECURITY": 2, "SUBNET_MANAGEMENT": 3, "INFORMATIONAL": 4},
    notice.Producer: {"CA": 1, "SWITCH": 2, "ROUTER": 3, "CLASS_MANAGER": 4},
    sa.RecordId: {
        "CLASS_PORT_INFO": 1, "NOTICE": 2, "INFORM_INFO": 3, "NODE": 0x11, "PORT_INFO": 0x12, "SL_TO_VL": 0x13,
        "SWITCH_INFO": 0x14, "LINEAR_FORWARDING": 0x15, "MULTICAST_FORWARDING": 0x17, "SM_INFO": 0x18,
        "LINK": 0x20,
        "GUID_INFO": 0x30, "SERVICE": 0x31, "PKEY_TABLE": 0x33, "PATH": 0x35, "VL_ARBITRATION": 0x36,
        "MC_MEMBER": 0x38, "MULTI_PATH": 0x3A, "INFORM_INFO_RECORD": 0xF3,
    },
    sa.Selector: {"GREATER": 0, "LESS": 1, "EXACTLY": 2, "LARGEST": 3},
    rmpp.Kind: {"NONE": 0, "DATA": 1, "ACK": 2, "STOP": 3, "ABORT": 4},
    rmpp.Flag: {"ACTIVE": 1, "FIRST": 2, "LAST": 4},
    rmpp.Reason: {
        "NORMAL": 0, "RESOURCES": 1, "TIMEOUT": 118, "INCONSISTENT_LAST": 119, "INCONSISTENT_FIRST": 120,
        "BAD_TYPE": 121, "WINDOW_TOO_SMALL": 122, "SEGMENT_TOO_BIG": 123, "TOO_MANY_RETRIES": 127,
    },
    Speed: {"SDR": 0, "DDR": 1, "QDR": 2, "FDR10": 3, "FDR": 4, "EDR": 5, "HDR": 6, "NDR": 7, "XDR": 8},
}  # fmt: skip


@pytest.mark.parametrize("kind", list(CODES), ids=lambda kind: kind.__name__)
def test_codes_are_the_architecture_s(kind):
    assert {member.name: member.value for member in kind} == CODES[kind]


def test_capability_bits_are_the_architecture_s():
    bits = {
        "IS_SM": 1, "NOTICE": 2, "TRAP": 3, "AUTOMATIC_MIGRATION": 5, "SL_MAPPING": 6, "SYSTEM_IMAGE_GUID": 11,
        "EXTENDED_SPEEDS": 14, "CAPABILITY_MASK2": 15, "COMMUNICATION_MANAGEMENT": 16, "CAPABILITY_NOTICE": 22,
        "CLIENT_REREGISTRATION": 25, "OTHER_LOCAL_CHANGES": 26, "MULTICAST_FDB_TOP": 30,
    }  # fmt: skip
    more = {
        "SET_NODE_DESCRIPTION": 0, "WIDTH_2X": 4, "SPEED_HDR": 5, "SPEED_NDR": 10, "EXTENDED_SPEEDS2": 11,
        "SPEED_XDR": 12,
    }  # fmt: skip
    kinds = [k for k in vars(smp).values() if isinstance(k, type) and "IS_SM" in vars(k)]
    seconds = [k for k in vars(smp).values() if isinstance(k, type) and "SPEED_HDR" in vars(k)]
    for (kind,), expected in ((kinds, bits), (seconds, more)):
        assert {member.name: member.value for member in kind} == {name: 1 << at for name, at in expected.items()}


def test_sizes_of_datagrams():
    assert (header.MAD_BYTES, header.SA_DATA_BYTES, header.MAX_HOPS) == (256, 200, 63)
    assert (header.PERMISSIVE_LID, header.RESPONSE, header.DIRECTION) == (0xFFFF, 0x80, 0x8000)
    mad = bytes(range(256))
    assert mad[header.SMP_DATA] == mad[64:128]
    assert mad[header.PERF_DATA] == mad[64:]
    assert mad[header.SA_DATA] == mad[56:]
    assert pm.ALL_PORTS == 255
    assert (rmpp.SA_HEADER_BYTES, rmpp.PAYLOAD_BYTES) == (20, 220)
    assert rmpp.LARGEST_TABLE_BYTES == 2**26


@pytest.mark.parametrize(
    ("at", "value", "wrong"),
    [
        (0, 0, True),
        (0, 2, True),
        (2, 0, False),
        (2, 2, False),
        (2, 3, True),
        (7, 63, False),
        (7, 64, True),
        (1, 4, False),
    ],
)
def test_a_datagram_s_version_and_hops(at, value, wrong):
    mad = bytearray(header.DirectedSmp().encode())
    mad[at] = value
    if wrong:
        with pytest.raises(MadError):
            header.check_mad(mad)
    else:
        header.check_mad(mad)


@pytest.mark.parametrize("size", [0, 255, 257])
def test_a_datagram_has_256_bytes(size):
    with pytest.raises(MadError):
        header.check_mad(bytes([1, 1, 1]).ljust(size, b"\0")[:size])


def test_other_classes_may_have_anything_where_hops_are():
    mad = bytearray(header.LidSmp().encode())
    mad[7] = 255
    header.check_mad(mad)


@pytest.mark.parametrize(
    "name", ["lmc", "m_key_protect_bits", "link_speed_enabled", "subnet_timeout", "lid", "m_key"]
)
@pytest.mark.parametrize("at", [0, 5])
def test_a_field_in_place_leaves_its_neighbours(name, at):
    place = smp.PortInfo.place(name)
    for fill in (b"\x00", b"\xff", b"\x5a"):
        data = bytearray(fill * (64 + at))
        before = int.from_bytes(data[at:], "big")
        one = Field(smp.PortInfo, name, at)
        down = 512 - place.offset - place.width
        assert one.get(data) == (before >> down) & (2**place.width - 1)
        value = 0b0110 & (2**place.width - 1)
        one.put(data, value)
        expected = before & ~((2**place.width - 1) << down) | value << down
        assert int.from_bytes(data[at:], "big") == expected
        assert data[:at] == fill * at
        shifted = bytearray(b"\x77" * 3 + data)
        assert Field(smp.PortInfo, name, at).get(shifted, 3) == value


def test_a_field_in_place_is_one_number():
    for kind, name in ((smp.SlToVl, "vls"), (smp.NodeDescription, "text")):
        with pytest.raises(MadError):
            Field(kind, name)


# ---------------------------------------------------------------------- width, speed, rate


def test_widths_are_bits():
    assert links.WIDTH_CODES == {1: 1 << 0, 4: 1 << 1, 8: 1 << 2, 12: 1 << 3, 2: 1 << 4}
    assert links.WIDTHS == {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}


LADDER = (Speed.SDR, Speed.DDR, Speed.QDR, Speed.FDR10, Speed.FDR, Speed.EDR, Speed.HDR, Speed.NDR, Speed.XDR)
ACTIVE = {  # LinkSpeedActive, LinkSpeedExtActive, LinkSpeedExt2Active, the vendor's FDR10 bit
    Speed.SDR: (1, 0, 0, 0), Speed.DDR: (2, 0, 0, 0), Speed.QDR: (4, 0, 0, 0), Speed.FDR10: (4, 0, 0, 1),
    Speed.FDR: (4, 1, 0, 0), Speed.EDR: (4, 2, 0, 0), Speed.HDR: (4, 4, 0, 0), Speed.NDR: (4, 8, 0, 0),
    Speed.XDR: (4, 0, 1, 0),
}  # fmt: skip
SUPPORTED = {
    Speed.SDR: (1, 0, 0, 0), Speed.DDR: (3, 0, 0, 0), Speed.QDR: (7, 0, 0, 0), Speed.FDR10: (7, 0, 0, 1),
    Speed.FDR: (7, 1, 0, 1), Speed.EDR: (7, 3, 0, 1), Speed.HDR: (7, 7, 0, 1), Speed.NDR: (7, 15, 0, 1),
    Speed.XDR: (7, 15, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("speed", LADDER)
def test_speeds_in_three_sets_of_fields(speed):
    active, can = links.active_fields(speed), links.supported_fields(speed)
    assert (active.first, active.extended, active.extended2, active.vendor) == ACTIVE[speed]
    assert (can.first, can.extended, can.extended2, can.vendor) == SUPPORTED[speed]
    assert links.read_speed(*ACTIVE[speed]) == speed
    for limit in LADDER:
        assert links.fastest_common(*SUPPORTED[speed], limit) == min(speed, limit)


def test_speeds_that_have_nothing_in_common():
    assert links.fastest_common(0, 0, 0, 0, Speed.XDR) is None
    assert links.fastest_common(0, 8, 0, 0, Speed.HDR) is None
    assert links.fastest_common(1, 8, 0, 0, Speed.HDR) == Speed.SDR
    assert links.fastest_common(4, 0, 0, 0, Speed.FDR10) == Speed.QDR
    assert links.fastest_common(0, 0, 0, 1, Speed.XDR) == Speed.FDR10


def test_unknown_speeds_are_the_fastest_or_slowest_known():
    assert links.read_speed(4, 16, 0) == Speed.NDR
    assert links.read_speed(8, 0, 0) == Speed.SDR
    assert links.read_speed(4, 2, 1, 1) == Speed.XDR
    assert links.read_speed(4, 0, 0, 2) == Speed.QDR


# Gb/s of a lane after line code: 8b/10b to QDR, 64b/66b from FDR10 on
LANE_GBPS = {Speed.SDR: 2, Speed.DDR: 4, Speed.QDR: 8, Speed.FDR10: 10, Speed.EDR: 25, Speed.HDR: 50,
    Speed.NDR: 100,
             Speed.XDR: 200}  # fmt: skip


@pytest.mark.parametrize("speed", list(LANE_GBPS))
def test_lanes_add_up(speed):
    assert links.lane_rate_bps(speed) == pytest.approx(LANE_GBPS[speed] * 1e9, rel=1e-9)
    for width in (1, 2, 4, 8, 12):
        assert links.rate_of(width, speed) == width * links.lane_rate_bps(speed)
        assert links.rate_of(*links.link_of(links.rate_of(width, speed))) == links.rate_of(width, speed)
    assert links.link_of(links.rate_of(4, speed) + 1000) == (4, speed)


# ibv_rate, and Rate of path records: code to Gb/s as it is named
NAMED = {2: 2.5, 3: 10, 4: 30, 5: 5, 6: 20, 7: 40, 8: 60, 9: 80, 10: 120, 11: 14, 12: 56, 13: 112, 14: 168, 15: 25,
         16: 100, 17: 200, 18: 300, 19: 28, 20: 50, 21: 400, 22: 600, 23: 800, 24: 1200}  # fmt: skip
SIGNALLED = {Speed.SDR: 2.5, Speed.DDR: 5, Speed.QDR: 10, Speed.FDR10: 10, Speed.FDR: 14, Speed.EDR: 25,
    Speed.HDR: 50,
             Speed.NDR: 100, Speed.XDR: 200}  # fmt: skip


def test_rates_have_the_codes_of_path_records():
    assert {code: tenths / 10 for code, tenths in links.RATES.items()} == NAMED
    for speed, lane in SIGNALLED.items():
        for width in (1, 2, 4, 8, 12):
            fits = {code: named for code, named in NAMED.items() if named <= lane * width}
            assert links.rate_code(width, speed) == max(fits, key=lambda code: fits[code]), (speed, width)


@pytest.mark.parametrize(
    ("size", "code"),
    [(256, 1), (511, 1), (512, 2), (1024, 3), (2048, 4), (4095, 4), (4096, 5), (9000, 5), (100, 1)],
)
def test_mtu_codes(size, code):
    assert links.mtu_code(size) == code
    assert links.mtu_of(code) == 2 ** (7 + code)


# ---------------------------------------------------------------------- tables of records

QUERY = header.SaMad(method=0x92, tid=5, attribute=0x11, attribute_offset=14)


def data(number: int, flags: int, *, length: int = 0, **more: int) -> header.SaMad:
    made = replace(QUERY, rmpp_version=1, rmpp_type=1, rmpp_flags=flags, rmpp_data1=number, rmpp_data2=length)
    return replace(made, data=bytes([number]) * 200, **more)


def test_a_receiver_acknowledges_the_first_each_half_window_and_the_last():
    receiver = rmpp.Receiver()
    answers = {}
    for number in range(1, 31):
        flags = 1 | (2 if number == 1 else 0) | (4 if number == 30 else 0)
        for ack in receiver.receive(data(number, flags, length=20 + 7 if number == 30 else 0)):
            answers[number] = ack
    assert sorted(answers) == [1, 8, 16, 24, 30]
    for number, ack in answers.items():
        assert (ack.rmpp_type, ack.rmpp_flags, ack.rmpp_version, ack.rmpp_status) == (2, 1, 1, 0)
        assert (ack.rmpp_data1, ack.rmpp_data2) == (number, number + 16)
        assert ack.method == 0x12
        assert ack.tid == 5
        assert ack.data == bytes(200)
    assert receiver.done
    assert receiver.failed is None
    assert receiver.table == b"".join(bytes([n]) * 200 for n in range(1, 30)) + bytes([30]) * 7
    assert receiver.head == data(1, 3)
    (again,) = receiver.receive(data(30, 5, length=27))  # the acknowledgement was lost
    assert (again.rmpp_type, again.rmpp_data1) == (2, 30)
    assert receiver.receive(replace(QUERY, rmpp_flags=1, rmpp_type=2)) == []


@pytest.mark.parametrize("window", [1, 2, 3])
def test_small_windows_are_acknowledged_each_time_or_every_other(window):
    receiver = rmpp.Receiver(window=window)
    acknowledged = [n for n in range(1, 7) if receiver.receive(data(n, 3 if n == 1 else 1))]
    assert acknowledged == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("mad", "reason"),
    [
        (data(1, 1), 120),  # the first without its flag
        (data(2, 3), 120),  # the flag on another
        (data(1, 7, length=19), 119),
        (data(1, 7, length=221), 119),
        (replace(data(1, 3), rmpp_type=2), 121),
        (replace(data(1, 3), rmpp_type=9), 121),
    ],
)
def test_a_receiver_aborts_what_cannot_be(mad, reason):
    receiver = rmpp.Receiver()
    (answer,) = receiver.receive(mad)
    assert (answer.rmpp_type, answer.rmpp_status) == (4, reason)
    assert (receiver.done, receiver.failed) == (True, reason)
    assert receiver.receive(data(1, 3)) == []


@pytest.mark.parametrize(("length", "held"), [(20, 0), (21, 1), (220, 200)])
def test_lengths_of_a_last_segment(length, held):
    receiver = rmpp.Receiver()
    receiver.receive(data(1, 7, length=length))
    assert (receiver.done, receiver.failed, len(receiver.table)) == (True, None, held)


@pytest.mark.parametrize(("kind", "status", "reason"), [(3, 118, 118), (4, 118, 118), (3, 1, 1), (4, 119, 1)])
def test_a_sender_that_stops(kind, status, reason):
    receiver = rmpp.Receiver()
    assert receiver.receive(replace(QUERY, rmpp_flags=1, rmpp_type=kind, rmpp_status=status)) == []
    assert (receiver.done, receiver.failed) == (True, reason)


def test_a_gap_is_answered_by_how_far_it_got():
    receiver = rmpp.Receiver()
    receiver.receive(data(1, 3))
    (ack,) = receiver.receive(data(3, 1))
    assert (ack.rmpp_type, ack.rmpp_data1, ack.rmpp_data2) == (2, 1, 17)
    (ack,) = receiver.receive(data(1, 3))
    assert ack.rmpp_data1 == 1
    assert receiver.receive(data(2, 1)) == []


@pytest.mark.parametrize(("flags", "kind"), [(0, 0), (0, 1), (1, 0)])
def test_a_response_without_transfer_is_a_table_in_itself(flags, kind):
    receiver, mad = rmpp.Receiver(), replace(QUERY, rmpp_flags=flags, rmpp_type=kind, data=b"x" * 200)
    assert receiver.receive(mad) == []
    assert (receiver.done, receiver.failed, receiver.table, receiver.head) == (True, None, b"x" * 200, mad)


def test_a_table_may_be_large_but_not_endless(monkeypatch):
    monkeypatch.setattr(rmpp, "LARGEST_TABLE_BYTES", 600)
    receiver = rmpp.Receiver()
    for number in (1, 2, 3):
        receiver.receive(data(number, 3 if number == 1 else 1))
        assert not receiver.done
    (answer,) = receiver.receive(data(4, 1))
    assert (answer.rmpp_type, answer.rmpp_status, receiver.failed) == (4, 123, 123)


def ack(got: int, window: int, **more: int) -> header.SaMad:
    return replace(QUERY, method=0x12, rmpp_flags=1, rmpp_type=2, rmpp_data1=got, rmpp_data2=window, **more)


def numbers(out: list[header.SaMad]) -> list[int]:
    return [mad.rmpp_data1 for mad in out]


def test_a_sender_fills_its_window_and_begins_again_where_it_was_acknowledged():
    sender = rmpp.Sender(rmpp.segments(QUERY, bytes(200 * 9 + 1)), retries=2, timeout_ps=1000)
    assert numbers(sender.start(100)) == [1]
    assert sender.poll(1099) == []
    assert numbers(sender.poll(1100)) == [1]
    assert numbers(sender.receive(ack(1, 5), 1200)) == [2, 3, 4, 5]
    assert sender.receive(ack(6, 9), 1300) == []  # of what was not sent
    assert sender.receive(ack(3, 2), 1300) == []  # a window that ends before it begins
    assert numbers(sender.receive(ack(3, 7), 1400)) == [6, 7]
    assert sender.receive(ack(2, 6), 1500) == []  # late: takes nothing back
    assert sender.poll(2499) == []
    assert numbers(sender.poll(2500)) == [4, 5, 6, 7]
    assert sender.poll(3499) == []
    assert numbers(sender.poll(3500)) == [4, 5, 6, 7]
    assert sender.poll(4499) == []
    assert not sender.done
    assert sender.poll(4500) == []
    assert (sender.done, sender.failed) == (True, 127)
    assert sender.receive(ack(7, 10), 4600) == []


def test_a_sender_is_done_with_its_last_acknowledgement():
    sender = rmpp.Sender(rmpp.segments(QUERY, bytes(400)))
    sender.start(0)
    assert numbers(sender.receive(ack(1, 17), 0)) == [2]
    assert sender.receive(ack(2, 18), 0) == []
    assert (sender.done, sender.failed) == (True, None)
    assert sender.poll(10**15) == []


@pytest.mark.parametrize("kind", [3, 4])
def test_a_receiver_that_stops(kind):
    sender = rmpp.Sender(rmpp.segments(QUERY, bytes(400)))
    sender.start(0)
    assert sender.receive(replace(ack(1, 9), rmpp_type=kind), 0) == []
    assert (sender.done, sender.failed) == (True, 1)


def test_a_sender_s_own_patience():
    sender = rmpp.Sender(rmpp.segments(QUERY, b""))
    assert (sender.retries, sender.timeout_ps) == (3, 2_000_000_000_000)
    assert (rmpp.FIRST_WINDOW, rmpp.WINDOW) == (1, 16)


def test_tables_are_cut_into_records():
    assert rmpp.records(b"", 0) == []
    assert rmpp.records(bytes(16), 1) == [bytes(8)] * 2
    assert rmpp.records(bytes(range(48)), 3) == [bytes(range(24)), bytes(range(24, 48))]
    for table, words in ((bytes(8), 0), (bytes(8), -1), (bytes(12), 1), (bytes(8), 2)):
        with pytest.raises(MadError):
            rmpp.records(table, words)


@pytest.mark.parametrize(("size", "count"), [(0, 1), (1, 1), (200, 1), (201, 2), (400, 2), (401, 3)])
def test_segments_of_a_table(size, count):
    table = bytes(i % 251 for i in range(size))
    parts = rmpp.segments(QUERY, table)
    assert len(parts) == count
    assert b"".join(part.data for part in parts) == table
    assert {(part.rmpp_version, part.rmpp_type, part.tid, part.method) for part in parts} == {(1, 1, 5, 0x92)}
    assert parts[-1].rmpp_data2 == size - 200 * (count - 1) + 20
    if count > 1:
        assert parts[0].rmpp_data2 == size + 20 * count
    if count > 2:
        assert parts[1].rmpp_data2 == 0


# ---------------------------------------------------------------------- components of records

COMPONENTS = {
    sa.NodeRecord: "lid - base_version class_version node_type num_ports system_image_guid node_guid port_guid "
    "partition_cap device_id revision local_port_num vendor_id description",
    sa.SwitchInfoRecord: "lid - linear_fdb_cap random_fdb_cap multicast_fdb_cap linear_fdb_top default_port "
    "default_multicast_primary_port default_multicast_not_primary_port life_time_value port_state_change "
    "optimized_sl_to_vl lids_per_port partition_enforcement_cap inbound_enforcement_cap outbound_enforcement_cap "
    "filter_raw_inbound_cap filter_raw_outbound_cap enhanced_port0 multicast_fdb_top",
    sa.LinearForwardingRecord: "lid block",
    sa.SmInfoRecord: "lid - guid sm_key act_count priority sm_state",
    sa.LinkRecord: "from_lid from_port to_port to_lid",
    sa.SlToVlRecord: "lid into out",
    sa.VlArbitrationRecord: "lid port_num block",
    sa.PKeyTableRecord: "lid block port_num",
    sa.GuidInfoRecord: "lid block",
    sa.MulticastForwardingRecord: "lid position - block",
    sa.InformInfoRecord: "subscriber_gid enum",
    sa.PathRecord: "service_id service_id dgid sgid dlid slid raw_traffic - flow_label hop_limit tclass "
    "reversible num_path pkey qos_class sl mtu_selector mtu rate_selector rate packet_life_time_selector "
    "packet_life_time",
    sa.McMemberRecord: "mgid port_gid qkey mlid mtu_selector mtu tclass pkey rate_selector rate "
    "packet_life_time_selector packet_life_time sl flow_label hop_limit scope join_state proxy_join",
}


@pytest.mark.parametrize("record", list(COMPONENTS), ids=lambda record: record.__name__)
def test_components_are_counted_as_the_architecture_does(record):
    """Tables 15.2.5: each component has a bit, reserved ones in the middle too."""
    for bit, name in enumerate(COMPONENTS[record].split()):
        found = [one.removeprefix("info.") for one in sa.components(record, 1 << bit)]
        assert found == ([] if name == "-" else [name]), bit
    assert sa.components(record, 1 << 63) == []
    with pytest.raises(ValueError, match="not in tuple"):
        sa.component_mask(record, "nothing")


@pytest.mark.parametrize(
    ("bit", "name"), list(enumerate(["service_id", "service_gid", "pkey", "", "lease_s", "key", "name"]))
)
def test_components_of_a_service(bit, name):
    assert sa.components(sa.ServiceRecord, 1 << bit) == ([name] if name else [])


def test_data_of_a_service_are_components_each():
    names = sa.components(sa.ServiceRecord, 2**64 - 2**7)
    words = ((8, 16), (16, 8), (32, 4), (64, 2))
    assert names == [f"data{width}[{i}]" for width, count in words for i in range(count)]


@pytest.mark.parametrize("size", [8, 9, 15, 16])
def test_records_are_padded_to_eight_bytes(size):
    class Some:
        def encode(self) -> bytes:
            return b"x" * size

    padded = sa.record_bytes(Some())
    assert len(padded) == -(-size // 8) * 8
    assert padded == b"x" * size + bytes(len(padded) - size)
