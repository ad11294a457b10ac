"""Captures: what is written is what went over the wire, and other programs read it as such."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import captures
from support.clusters import boxes
from support.flow_options import flow_options

from fabrictwin.base.errors import ConfigError
from fabrictwin.capture import frames
from fabrictwin.capture import transport_headers as transport
from fabrictwin.capture.checksums import variant
from fabrictwin.capture.dissection import Pause, Seen, dissect
from fabrictwin.capture.flow_summary import summarise, text
from fabrictwin.capture.pcapng import LINK_ERF, CaptureWriter
from fabrictwin.capture.reader import CaptureFile, Packet
from fabrictwin.capture.recorder import CaptureRequest, adapters_named
from fabrictwin.capture.transport_headers import Op
from fabrictwin.engines.base.messages import Contents, GidType, Message, Opcode
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.tools.traffic.connection_matrix import read_traffic
from fabrictwin.tools.traffic.play_traffic import play_traffic

KINDS = {
    "roce": {"technology": "ethernet"},
    "ipv6": {"technology": "ethernet", "ipv6": True},
    "roce-v1": {"technology": "ethernet", "kind": GidType.ROCE_V1},
    "infiniband": {"technology": "infiniband"},
    "grh": {"technology": "infiniband", "ipv6": True},
}
EVERY_OP = {f"RC {op.name}" for op in Op}
EVERY_OP |= {f"UC {op.name}" for op in Op if op.name.startswith(("SEND", "WRITE")) and "INVALIDATE" not in op.name}
EVERY_OP |= {"UD SEND_ONLY", "UD SEND_ONLY_IMMEDIATE"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("captures")
    for name, options in KINDS.items():
        captures.write(folder / f"{name}.pcapng", **options)
    return {name: folder / f"{name}.pcapng" for name in KINDS}


def packets(path: Path) -> list[Packet]:
    return list(CaptureFile(path))


def seen(path: Path) -> list[Seen]:
    return [s for s in map(dissect, packets(path)) if isinstance(s, Seen)]


@pytest.mark.parametrize("name", KINDS)
def test_a_capture_has_every_opcode_and_nothing_is_wrong_in_it(files, name):
    found = summarise(CaptureFile(files[name]))
    assert set().union(*(f.opcodes for f in found.flows)) == EVERY_OP
    assert found.counts["packets"] == found.total("packets")
    totals = ("gaps", "retransmissions", "naks", "not_ready", "icrc_errors", "icrc_unchecked")
    assert {n: found.total(n) for n in totals} == dict.fromkeys(totals, 0)


def test_the_capture_has_every_packet_that_the_port_counted(tmp_path):
    for technology in ("ethernet", "infiniband"):
        engine = captures.write(tmp_path / "a.pcapng", technology)
        port = engine.network.machine.state.port
        cable = int(engine.fabric.nic_port[0])
        out = [p for p in packets(tmp_path / "a.pcapng") if p.outbound]
        assert len(out) == int(port.tx_packets[cable])
        payload = sum(s.payload_bytes for p in out if isinstance(s := dissect(p), Seen))
        assert payload == int(port.tx_payload[cable])
        # the twin's wire bytes are the frame's, with what Ethernet adds around it: preamble, check sequence, gap
        around = 24 if technology == "ethernet" else 0
        assert sum(p.wire_bytes + around for p in out) == int(port.tx_bytes[cable])


def test_payload_is_the_bytes_that_were_given_and_zeros_where_none_were(files, tmp_path):
    for s, p in zip(seen(files["roce"]), packets(files["roce"]), strict=True):
        if s.bth.opcode == transport.Service.RC | Op.SEND_ONLY:
            assert p.data[54 : 54 + s.payload_bytes] == captures.PAYLOAD[: s.payload_bytes]
    engine = captures.PacketEngine(boxes(8, "ethernet").fabric, boxes(8, "ethernet").routes)
    with CaptureRequest(tmp_path / "z.pcapng", ("host-0",)).start(engine):
        engine.send(engine.open(0, 1), Message(1000, Opcode.SEND))
        captures.settle(engine, {}, {})
    assert packets(tmp_path / "z.pcapng")[0].data[54:1054] == bytes(1000)


def independent_icrc(frame: bytes) -> bytes:
    """RoCE v2 over IPv4 by the annex's words: ones for TOS, TTL, both checksums and BTH's fifth byte."""
    ip = bytearray(frame[14:-4])
    for at in (1, 8, 10, 11, 26, 27, 32):
        ip[at] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(ip)))


def test_scapy_and_an_independent_formula_compute_every_icrc_equal(files):
    from scapy.contrib.roce import BTH
    from scapy.layers.l2 import Ether

    checked = 0
    for name in ("roce", "ipv6"):
        for p in packets(files[name]):
            # scapy takes RoCE by UDP's port
            frame = Ether(p.data)
            kept = frame[BTH].icrc
            frame[BTH].icrc = None
            again = Ether(frame.build())
            assert again[BTH].icrc == kept
            checked += 1
            if name == "roce":
                assert independent_icrc(p.data) == p.data[-4:]
    assert checked > 150


def test_a_spoiled_byte_anywhere_in_a_packet_shows_unless_switches_may_change_it(files):
    for name in KINDS:
        for p in packets(files[name])[:12]:
            at = len(p.data) - 8
            bad = Packet(0, 0, p.link, p.data[:at] + bytes([p.data[at] ^ 1]) + p.data[at + 1 :], p.wire_bytes)
            assert dissect(bad).icrc_good is False
    p = packets(files["roce"])[0]
    marked = bytearray(p.data)
    marked[15] |= 3  # a congestion mark
    marked[22] -= 1  # a hop
    assert dissect(Packet(0, 0, p.link, bytes(marked), p.wire_bytes)).icrc_good is True


def test_infiniband_checksums_differ_where_the_link_may():
    ends = frames.Ends(frames.Address(lid=1), frames.Address(lid=2))
    packet = transport.Bth(transport.Service.RC | Op.SEND_ONLY, 0xFFFF, 5, 7).pack() + bytes(16)
    one = frames.infiniband(ends, packet, service_level=0, virtual_lane=0)
    other = frames.infiniband(ends, packet, service_level=0, virtual_lane=3)
    assert one[-6:-2] == other[-6:-2]  # the lane is no part of the invariant CRC
    assert one[-2:] != other[-2:]
    assert variant(one[:-2]) == one[-2:]
    assert bit_by_bit(one[:-2]) == one[-2:]


def bit_by_bit(packet: bytes) -> bytes:
    """Return CRC-16 of polynomial 0x100B, lowest bit first."""
    crc = 0xFFFF
    for byte in packet:
        for bit in range(8):
            low = (crc ^ byte >> bit) & 1
            crc = crc >> 1 ^ (int(f"{0x100B:016b}"[::-1], 2) if low else 0)
    return (crc ^ 0xFFFF).to_bytes(2, "little")


@pytest.mark.parametrize("length", [2, 3, 1023, 1024, 1025, 4130])
def test_the_variant_checksum_of_packets_of_any_length(length):
    packet = bytes(i * i % 251 for i in range(length))
    assert variant(packet) == bit_by_bit(packet)


def test_losses_retransmissions_and_naks_of_a_flapping_link_are_found(tmp_path):
    path = tmp_path / "f.pcapng"
    engine = captures.write(path, "ethernet", faults=True, sizes=(16, 100_000), adapters=(0, 7))
    found = summarise(CaptureFile(path))
    qp = engine.network.machine.state.qp[: engine.network.machine.queue_pairs]
    out = [f for f in found.flows if f.ends.outbound and found.names[f.ends.interface].startswith("host-0")]
    # what the fault dropped at the adapter never reached its wire
    assert 0 < sum(f.counts["retransmissions"] for f in out) <= int(qp.retransmitted.sum())
    assert sum(f.counts["naks"] for f in found.flows if f.ends.outbound) == int(qp.naks.sum()) > 0
    assert found.total("icrc_errors") == 0


def test_reads_whose_responses_are_lost_are_asked_for_again_on_the_wire(tmp_path):
    path = tmp_path / "r.pcapng"
    twin = boxes(8, "ethernet")
    engine = captures.PacketEngine(twin.fabric, twin.routes)
    port = int(twin.fabric.nic_port[1])
    with CaptureRequest(path, ("host-0",)).start(engine):
        a = engine.open(0, 1, options=flow_options(source_qpn=2, target_qpn=3, timeout=4))
        b = engine.open(1, 0, options=flow_options(source_qpn=3, target_qpn=2, timeout=4))
        m = engine.send(a, Message(1 << 19, Opcode.READ_REQUEST, contents=Contents(remote_address=0x10000)))
        engine.change(captures.TimedChange(10_000_000, port, 0))
        engine.change(captures.TimedChange(11_000_000, port))
        captures.settle(engine, {a: b}, {m: (Opcode.READ_REQUEST, 1 << 19)})
    asked = [p for p in packets(path) if dissect(p).bth.opcode == Op.READ_REQUEST]
    assert len(asked) >= 2
    first, again = dissect(asked[0]), dissect(asked[1])
    behind = (again.bth.psn - first.bth.psn) * 4096
    assert again.length == first.length - behind
    assert struct.unpack_from(">Q", asked[1].data, 54)[0] == 0x10000 + behind


def test_congestion_marks_cnps_and_pauses_are_there(tmp_path):
    cm = tmp_path / "x.cm"
    flows = "\n".join(f"{i}->7 start 0 size 2000000" for i in range(5))
    cm.write_text(f"Nodes 8\nConnections 5\n{flows}\n")
    twin = boxes(8, "ethernet")
    options = options_with(control="dcqcn", buffer_bytes=2 << 20)
    path = tmp_path / "x.pcapng"
    result = play_traffic(
        read_traffic(cm), twin.fabric, twin.routes, options, slowdown=False, capture=CaptureRequest(path)
    )
    found = summarise(CaptureFile(path))
    state = result.engine.network.machine.state
    qp = state.qp[: result.engine.network.machine.queue_pairs]
    assert found.total("cnps") == int(qp.cnps_sent.sum()) + int(qp.cnps_handled.sum()) > 0
    into = [
        f for f in found.flows if f.ends.outbound is False and found.names[f.ends.interface].startswith("host-7")
    ]
    assert sum(f.counts["ecn_marked"] for f in into) > 0
    nics = twin.fabric.nic_port
    assert found.counts["pauses"] == int(state.count.pause_rx[nics].sum() + state.count.pause_tx[nics].sum())
    assert found.total("payload_bytes") == 2 * 5 * 2_000_000  # once at either end
    assert [s for s in map(dissect, packets(path)) if isinstance(s, Pause)] != [] or found.counts["pauses"] == 0


def test_a_capture_changes_nothing_and_costs_no_memory_by_its_length(tmp_path):
    twin = boxes(8)
    ends = []
    for captured in (False, True):
        engine = captures.PacketEngine(twin.fabric, twin.routes)
        recorder = None
        if captured:
            recorder = CaptureRequest(tmp_path / "m.pcapng", ("host-0",), 64).start(engine)
        flow = engine.open(0, 1)
        for _ in range(30):
            for _ in range(100):
                engine.send(flow, Message(3000, Opcode.WRITE))
            while engine.advance().events:
                pass
        ends.append(engine.now_ps)
        if recorder is not None:
            recorder.close()
            assert sum(len(f.messages) for f in recorder._flows.values()) < 1000
            assert recorder.writer.packets > 3000
    assert ends[0] == ends[1]
    found = summarise(CaptureFile(tmp_path / "m.pcapng"))
    assert found.total("icrc_unchecked") == found.total("messages") == 3000  # acknowledgements fit whole
    assert found.total("payload_bytes") == 3000 * 3000


def test_names_and_files_that_are_not_there_are_refused(tmp_path):
    fabric = boxes(8).fabric
    assert adapters_named(fabric, ["host-1", "host-2/mlx5_0"]) == [1, 2]
    with pytest.raises(ConfigError, match="did you mean 'host-1'"):
        adapters_named(fabric, ["hots-1"])
    with pytest.raises(ConfigError, match="cannot be written"):
        CaptureWriter(tmp_path / "none" / "x.pcapng")
    with pytest.raises(ConfigError, match="cannot be read"):
        packets(tmp_path / "none.pcap")
    for content in (b"", b"hello world, this is text"):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(ConfigError, match="pcap, pcapng or ERF"):
            packets(tmp_path / "t")


def classic_pcap(path: Path, order: str, nanoseconds: bool, link: int, data: list[bytes]) -> None:
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, link)]
    for i, frame in enumerate(data):
        parts.append(struct.pack(f"{order}IIII", 5, i, len(frame), len(frame)) + frame)
    path.write_bytes(b"".join(parts))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_classic_pcap_files_and_bare_erf_are_read_too(files, tmp_path, order, nanoseconds):
    data = [p.data for p in packets(files["roce"])]
    path = tmp_path / "c.pcap"
    classic_pcap(path, order, nanoseconds, 1, data)
    again = packets(path)
    assert [p.data for p in again] == data
    assert again[3].time_ps - again[0].time_ps == 3 * (1000 if nanoseconds else 10**6)
    assert summarise(CaptureFile(path)).total("icrc_errors") == 0
    from fabrictwin.capture.pcapng import erf

    records = [erf(p.time_ps, p.data, len(p.data)) for p in packets(files["infiniband"])]
    (tmp_path / "c.erf").write_bytes(b"".join(records))
    found = CaptureFile(tmp_path / "c.erf")
    assert len(list(found)) == len(records)
    assert found.kind == "ERF"
    classic_pcap(path, order, nanoseconds, LINK_ERF, records)
    assert summarise(CaptureFile(path)).total("icrc_errors") == 0


def read_whatever(path: Path) -> None:
    """Either a summary in which every packet stands once, or one clear error."""
    try:
        found = summarise(CaptureFile(path))
    except ConfigError:
        return
    others = sum(found.counts[name] for name in ("other", "pauses", "resumes"))
    assert found.counts["packets"] == others + found.total("packets")
    assert all(sum(flow.opcodes.values()) == flow.counts["packets"] for flow in found.flows)
    assert text(found).startswith(f"{found.kind}, {found.counts['packets']} packets in ")
    assert json.loads(json.dumps(found.as_json()))["packets"] == found.counts["packets"]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_captures_are_read_or_refused_never_worse(files, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged"
    raw = bytearray(files[data.draw(st.sampled_from(sorted(KINDS)))].read_bytes()[:4000])
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    read_whatever(path)


@given(st.binary(max_size=200), st.sampled_from([0x0A0D0D0A, 0xA1B2C3D4, 0xA1B23C4D]), st.sampled_from(["<", ">"]))
def test_arbitrary_bytes_are_no_capture_or_an_empty_one(tmp_path_factory, data, magic, order):
    path = tmp_path_factory.getbasetemp() / "arbitrary"
    path.write_bytes(struct.pack(f"{order}I", magic) + data)
    read_whatever(path)


@given(st.binary(max_size=120), st.sampled_from([0, 1, 101, 113, 276, LINK_ERF]))
def test_arbitrary_frames_are_taken_apart_or_left(data, link):
    """A frame taken for RDMA holds a transport header; one of an unknown link is left."""
    found = dissect(Packet(0, 0, link, data, len(data)))
    if link == 0:
        assert found is None
    if isinstance(found, Seen):
        assert len(data) >= transport.BTH_BYTES
        assert found.payload_bytes >= 0
    else:
        assert found is None or len(data) >= 14  # a pause frame has an Ethernet header


def test_the_commands_write_and_read_captures(tmp_path):
    from fabrictwin.cli import root as app

    cm, pcap = tmp_path / "a.cm", tmp_path / "a.pcapng"
    cm.write_text("Nodes 4\nConnections 1\n0->3 start 0 size 100000\n")
    spec = tmp_path / "c.yaml"
    spec.write_text(
        "schema: 1\nname: c\ncluster:\n  hosts: {type: pcie-box, count: 4}\n  network:\n"
        "    technology: ethernet\n    switch: spectrum-4\n"
        "    topology: {kind: fat-tree, tiers: 2, leaf_down: 2}\n"
    )
    runner = CliRunner()
    done = runner.invoke(
        app,
        [
            "traffic",
            str(cm),
            "--cluster",
            str(spec),
            "--pcap",
            str(pcap),
            "--pcap-at",
            "host-0",
            "--snaplen",
            "80",
        ],
    )
    assert done.exit_code == 0, done.output
    read = runner.invoke(app, ["pcap", "read", str(pcap), "--json"])
    assert read.exit_code == 0
    data = json.loads(read.output)
    assert data["payload_bytes"] == 100_000
    assert data["flows"][0]["target"] == "10.0.0.4"
    assert "WRITE_FIRST" in runner.invoke(app, ["pcap", "read", str(pcap)]).output


def test_what_a_program_of_the_verbs_does_is_captured_with_its_keys_and_bytes(tmp_path):
    import ctypes

    from support.verbs_ends import End, connect

    from fabrictwin.verbs import current_host as place
    from fabrictwin.verbs.packet_capture import capture
    from fabrictwin.verbs.pyverbs.enums import IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE

    place.use(boxes(8, "ethernet"), engine="packet")
    with capture(tmp_path / "v.pcapng", at=("host-0",)):
        one, other = End("host-0"), End("host-1")
        connect(one, other)
        ctypes.memmove(one.mr.buf, captures.PAYLOAD, 64)
        for opcode in (IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ):
            one.send(opcode, remote=other, length=64)
            assert one.statuses() == [0]
        one.send(IBV_WR_ATOMIC_FETCH_AND_ADD, remote=other, length=8, operands=(3, 0))
        assert one.statuses() == [0]
    frames_ = packets(tmp_path / "v.pcapng")
    ops = [dissect(p).bth.opcode & 0x1F for p in frames_]
    assert ops == [
        Op.WRITE_ONLY,
        Op.ACKNOWLEDGE,
        Op.READ_REQUEST,
        Op.READ_RESPONSE_ONLY,
        Op.FETCH_ADD,
        Op.ATOMIC_ACKNOWLEDGE,
    ]
    # GID index 0 is RoCE v1: Ethernet and GRH, then BTH
    address, key, length = struct.unpack_from(">QII", frames_[0].data, 66)
    assert (address, key, length) == (other.mr.buf, other.mr.rkey, 64)
    assert frames_[0].data[82:146] == captures.PAYLOAD[:64]
    assert frames_[3].data[70:134] == captures.PAYLOAD[:64]
    assert int.from_bytes(frames_[5].data[70:78], "big") == int.from_bytes(captures.PAYLOAD[:8], "little")
    assert dissect(frames_[0]).bth.target_qpn == other.qp.qp_num
    # PSNs go on from where the queue pair began, and answers carry their requests'
    assert [dissect(p).bth.psn for p in frames_] == [100, 100, 101, 101, 102, 102]


@pytest.mark.second
@pytest.mark.parametrize("name", KINDS)
def test_tshark_dissects_every_frame(files, name):
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    fields = ("frame.protocols", "_ws.malformed", *(f"infiniband.bth.{f}" for f in ("opcode", "psn", "destqp")))
    command = ["tshark", "-r", str(files[name]), "-T", "fields", *(word for f in fields for word in ("-e", f))]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    mine = seen(files[name])
    assert len(out) == len(mine)
    for line, s in zip(out, mine, strict=True):
        protocols, malformed, opcode, psn, target = line.split("\t")
        assert "infiniband" in protocols
        assert not malformed
        assert (int(opcode), int(psn), int(target, 0)) == (s.bth.opcode, s.bth.psn, s.bth.target_qpn)
