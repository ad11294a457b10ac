"""Modules' bounds, interfaces' counts, neighbours' tables, ibdiagnet's events, JSON, CSV and management controllers."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_paths, read_text


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def told(text: str) -> list[str]:
    return [one.id for one in answer(text).findings if one.severity > Severity.QUESTION]


def asked(text: str) -> list[str]:
    return [one.id for one in answer(text).findings if one.severity == Severity.QUESTION and not one.instead_of]


def of_json(data: object, tmp_path) -> list[str]:
    file = tmp_path / "one.json"
    file.write_text(json.dumps(data))
    found = judged(read_paths([file]), twin=False).findings
    return [one.id for one in found if one.severity > Severity.QUESTION]


def events(table: str, event: str, summary: str) -> str:
    return (
        f"START_{table}\nScope,NodeGUID,PortGUID,PortNumber,EventName,Summary\n"
        f'PORT,0xb8,0xb8,3,{event},"{summary}"\nEND_{table}\n'
    )


@pytest.mark.parametrize(
    ("table", "event", "summary", "wanted"),
    [
        ("ERRORS_SM", "SM_NOT_FOUND_MASTER", "no master", "no-subnet-manager"),
        ("ERRORS_SM", "SM_FOUND_MANY_MASTERS", "two masters", "subnet-manager-error"),
        ("ERRORS_LINKS", "LINK_UNEXPECTED_WIDTH", "2x", "link-narrow"),
        ("ERRORS_LINKS", "LINK_DIFFERENT_SPEED", "10 and 25", "link-slow"),
        ("ERRORS_LINKS", "LINK_LOGICAL_STATE_NOT_ACTIVE", "INI", "no-subnet-manager"),
        ("ERRORS_BER", "BER_EXCEEDS_THRESHOLD", "1e-9", "link-errors"),
        ("ERRORS_LIDS", "PORT_DUPLICATED_LID", "lid 5", "subnet-manager-error"),
        ("ERRORS_PKEYS", "PKEY_MISMATCH", "0x8001", "partition-key"),
        ("ERRORS_CABLES", "CABLE_TEMPERATURE_ERROR", "80 C", "module-fault"),
        ("ERRORS_CABLES", "TRANSCEIVER_FW_VERSION_MISMATCH", "38 and 46", "firmware-old"),
        ("ERRORS_PM", "PM_COUNTER_INCREASED", "link_down_counter rose", "link-flapping"),
        ("ERRORS_PM", "PM_COUNTER_EXCEEDS_THRESHOLD", "symbol_error_counter 8", "link-errors"),
        ("ERRORS_PM", "PM_COUNTER_INCREASED", "port_xmit_discard rose", "discards"),
        ("ERRORS_SHARP_TREE", "TREE_NODE_NOT_FOUND", "node", "sharp-failed"),
        ("ERRORS_ODD", "SOMETHING_ELSE", "odd", "ibdiagnet-error"),
    ],
)
def test_an_event_of_ibdiagnet_names_its_cause(table, event, summary, wanted):
    assert told(events(table, event, summary))[:1] == [wanted]


@pytest.mark.parametrize("event", ["PM_COUNTER_NOT_SUPPORTED", "BER_VALUE_ZERO", "NODE_NOT_SUPPORT_SHARP"])
def test_what_a_node_cannot_do_is_no_fault(event):
    assert told(events("ERRORS_PM", event, "odd")) == []


def test_a_counter_that_waits_is_no_fault_in_ibdiagnet():
    assert told(events("ERRORS_PM", "PM_COUNTER_INCREASED", "port_xmit_wait rose")) == []


def module(rx: list[float], low: float = -9.0, high: float = 5.0, *, tx: float = -1.5) -> str:
    lanes = "".join(
        f"\tRcvr signal avg optical power(Channel {n}) : 0.0001 mW / {v:.2f} dBm\n" for n, v in enumerate(rx, 1)
    )
    return (
        f"\tIdentifier                                : 0x11 (QSFP28)\n{lanes}"
        f"\tTransmit avg optical power (Channel 1)  : 0.7 mW / {tx} dBm\n"
        f"\tLaser rx power high alarm threshold       : 3.5 mW / {high:.2f} dBm\n"
        f"\tLaser rx power low alarm threshold        : 0.1 mW / {low:.2f} dBm\n"
        "\tLaser output power high alarm threshold   : 3.5 mW / 5.50 dBm\n"
        "\tLaser output power low alarm threshold    : 0.4 mW / -3.90 dBm\n"
    )


@given(rx=st.lists(st.floats(-25, 8).map(lambda v: round(v, 2)), min_size=1, max_size=8))
def test_light_outside_of_a_modules_own_bounds_is_told(rx):
    outside = any(not -9.0 <= one <= 5.0 for one in rx)
    assert told(module(rx)) == (["module-fault"] if outside else [])


def test_lanes_that_are_not_used_are_dark_beside_others_and_a_dark_module_is_told():
    assert told(module([-1.0, -40.0, -40.0, -40.0])) == []
    assert told(module([-40.0] * 4)) == ["module-fault"]
    assert told(module([-12.0], low=0.0, high=0.0)) == []  # a module that gives no bounds


def test_a_switchs_table_of_a_module_is_read():
    rows = (
        "Ethernet1/1\n    transceiver is present\n           SFP Detail Diagnostics Information (internal calibration)\n"
        "  Temperature   31.45 C        75.00 C     -5.00 C     70.00 C        0.00 C\n"
        "  Rx Power     {}    2.00 dBm  -13.90 dBm   -1.00 dBm     -9.90 dBm\n"
    )
    assert told(rows.format("-2.56 dBm    ")) == []
    found = answer(rows.format("-30.45 dBm --")).findings
    assert [(one.id, one.object) for one in found][:1] == [("module-fault", "Ethernet1/1")]


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ("9000000 5000 0 0 0", ["link-errors"]),
        ("9000000 20 0 0 0", []),
        ("9000000000000 5000 0 0 0", []),
        ("9000000 0 700 0 0", []),  # dropped: for want of a protocol, mostly
        ("9000000 0 0 800 0", ["receive-queue-empty"]),
    ],
)
def test_errors_of_an_interface_are_held_against_its_packets(counts, wanted):
    ok, errors, dropped, missed, _ = counts.split()
    text = (
        "2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP mode DEFAULT\n"
        "    link/ether 00:11:22:33:44:55 brd ff:ff:ff:ff:ff:ff\n"
        f"    RX:  bytes  packets errors dropped  missed   mcast\n        1  {ok}  {errors} {dropped} {missed} 0\n"
        "    TX:  bytes  packets errors dropped carrier collsns\n        1  10  0 0 0 0\n"
    )
    assert told(text) == wanted


def test_netstat_proc_and_ifconfig_say_the_same():
    head = "Iface      MTU    RX-OK RX-ERR RX-DRP RX-OVR    TX-OK TX-ERR TX-DRP TX-OVR Flg\n"
    netstat = (
        f"Kernel Interface table\n{head}eth0 9000 1000000 900 0 0 5 0 0 0 BMRU\nlo 65536 9 900 0 0 9 0 0 0 LRU\n"
    )
    proc = (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo\n"
        "  eth0: 99 1000000 900 0 0 0 0 0 99 5 0 0 0 0 0 0\n"
    )
    ifconfig = (
        "eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500\n        RX packets 1000000  bytes 99\n"
        "        RX errors 900  dropped 0  overruns 0  frame 0\n        TX packets 5  bytes 99\n"
    )
    assert [told(text) for text in (netstat, proc, ifconfig)] == [["link-errors"]] * 3
    assert told(netstat.replace("eth0 9000 1000000 900", "eth0 9000 1000000 9")) == []


OSPF = "Neighbor ID     Pri State           Up Time         Dead Time Address         Interface\n"


@pytest.mark.parametrize("state", ["ExStart/DR", "Init/-", "Down/DROther", "Loading/BDR", "EXSTART/DR"])
def test_a_neighbour_of_ospf_that_exchanges_nothing_is_told(state):
    well = f"{OSPF}10.0.0.2          1 Full/-          10m42s   37.756s 10.0.0.0        eth1:10.0.0.1\n"
    assert told(well) == []
    assert told(f"{well}10.0.0.3          1 {state}      10m42s   37.756s 10.0.0.4        eth2:10.0.0.5\n") == [
        "bgp-down"
    ]
    assert told(well.replace("Full/-", "2-Way/DROther")) == []


@pytest.mark.parametrize(
    ("state", "wanted"), [("Estab   4      4", []), ("Active", ["bgp-down"]), ("Idle(Admin)", [])]
)
def test_neighbours_of_eos_are_read(state, wanted):
    head = "  Description    Neighbor V AS           MsgRcvd   MsgSent  InQ OutQ  Up/Down State   PfxRcd PfxAcc\n"
    assert (
        told(f"{head}  leaf1   10.0.1.1 4 65101           1200      1201    0    0    1d02h {state}\n") == wanted
    )


@pytest.mark.parametrize(
    ("state", "wanted"), [("Establ", []), ("5/10/10/0 0/0/0/0", []), ("Connect", ["bgp-down"])]
)
def test_peers_of_junos_are_read(state, wanted):
    head = "Peer                     AS      InPkt     OutPkt    OutQ   Flaps Last Up/Dwn State|#Active/Received\n"
    assert told(f"{head}192.0.2.254  64496  1165670  1238837  0  1 9w2d 5:23:37 {state}\n") == wanted


def peers(cell: str) -> str:
    return (
        f" \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\t{cell}\n GPU1\tOK\tX\tOK\n GPU2\t{cell}\tOK\tX\n\nLegend:\n\n  X    = Self\n"
        "  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    )


def test_gpus_that_do_not_reach_each_other_are_told_where_others_do():
    assert told(peers("OK")) == []
    assert told(peers("TNS")) == []  # sockets that keep apart
    assert told(peers("CNS")) == ["p2p-off"]
    assert told(peers("CNS").replace("OK", "CNS")) == []
    assert "p2p-off" in asked(peers("CNS").replace("OK", "CNS"))


def diag(name: str, *, status: str = "Fail", warnings: object = ()) -> dict[str, object]:
    result = {"gpu_id": "3", "status": status, "warnings": warnings}
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": "H", "tests": [{"name": name, "results": [result]}]}]}
    }


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("GPU Memory", "gpu-memory"),
        ("Persistence Mode", "host-settings"),
        ("NVML Library", "gpu-driver"),
        ("PCIe", "pci-errors"),
        ("Targeted Stress", "gpu-hardware"),
        ("Memory Bandwidth", "gpu-hardware"),
    ],
)
def test_a_test_of_dcgm_that_fails_names_what_it_tests(name, wanted, tmp_path):
    assert of_json(diag(name), tmp_path) == [wanted]
    assert of_json(diag(name, status="Pass"), tmp_path) == []
    said = "GPU 3 has fallen off the bus."
    assert of_json(diag(name, warnings=[{"warning": said}]), tmp_path) == ["gpu-lost"]
    assert told(f"| Diagnostic                | Result |\n| {name:<25} | Fail - GPU: 3 |\n")[:1] == [wanted]


def test_errors_of_links_that_dcgm_counts_as_json_are_read(tmp_path):
    def report(count: int) -> dict[str, object]:
        return {"body": {"Link 0": {"children": {"CRC Data Error": {"value": str(count)}}}}}

    assert of_json(report(0), tmp_path) == []
    assert of_json(report(400), tmp_path) == ["nvlink-error"]


@pytest.mark.parametrize(("flags", "wanted"), [(["UP", "LOWER_UP"], []), (["NO-CARRIER", "UP"], ["port-down"])])
def test_members_of_bonds_are_read_from_json(flags, wanted, tmp_path):
    links = [{"ifname": f"enp{n}", "flags": ["SLAVE", "UP", "LOWER_UP"]} for n in range(2)]
    assert of_json([*links, {"ifname": "enp9", "flags": ["SLAVE", *flags]}], tmp_path) == wanted


def test_files_of_sysfs_by_their_paths_are_read(tmp_path):
    def host(state: str) -> dict[str, str]:
        path = "/sys/bus/pci/devices/0000:0c:00.0/infiniband/mlx5_0/ports/1"
        return {f"{path}/state": state, f"{path}/phys_state": "5: LinkUp\n", f"{path}/link_layer": "InfiniBand"}

    assert of_json(host("4: ACTIVE\n"), tmp_path) == []
    assert of_json(host("2: INIT\n"), tmp_path) == ["no-subnet-manager"]


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("clocks_event_reasons.hw_slowdown", "Active", ["gpu-hot"]),
        ("clocks_throttle_reasons.active", "0x0000000000000084", ["gpu-power"]),
        ("clocks_throttle_reasons.active", "0x0000000000000004", []),
        ("ecc.errors.uncorrected.volatile.total", "3", ["gpu-memory"]),
        ("remapped_rows.failure", "1", ["gpu-memory"]),
        ("fabric.state", "In Progress", ["fabric-manager"]),
        ("temperature.gpu", "41", []),
    ],
)
def test_fields_of_nvidia_smi_as_csv_are_read(field, value, wanted):
    well = {"clocks_event_reasons.hw_slowdown": "Not Active", "fabric.state": "Completed"}.get(field, "0")
    text = f"index, name, {field}\n0, NVIDIA H100 80GB HBM3, {well}\n1, NVIDIA H100 80GB HBM3, {value}\n"
    assert told(text) == wanted


def test_a_gpu_with_fewer_lanes_than_its_peers_stands_out_in_csv():
    head = "index, name, pcie.link.width.current, pcie.link.width.max\n"
    rows = [f"{n}, NVIDIA H100 80GB HBM3, 16, 16\n" for n in range(4)]
    assert told(head + "".join(rows)) == []
    assert told(head + "".join(rows) + "4, NVIDIA H100 80GB HBM3, 8, 16\n") == ["pci-narrow"]


def test_what_nvidia_smi_says_of_its_fields_is_no_trouble():
    text = 'List of valid properties to query for the switch "--query-gpu":\n\n"ecc.errors.uncorrected.volatile.total"\n'
    assert told(f"{text}Total uncorrected ECC errors; a failed GPU is lost or has fallen off the bus.\n") == []


def test_a_gpu_that_nvml_calls_lost_is_lost():
    text = '<nvidia_smi_log>\n<gpu id="00000000:0A:00.0">\n<fabric>\n<state>{0}</state>\n</fabric>\n<total>{1}</total>\n'
    assert told(text.format("Completed", "196608 MiB")) == []
    assert told(text.format("GPU is lost", "GPU is lost")) == ["gpu-lost"]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("  1 | 12/24/2022 | 13:58:36 | Memory #0x90 | Uncorrectable ECC | Asserted", ["host-hardware"]),
        ("  1 | 12/24/2022 | 13:58:36 | Critical Interrupt #0x90 | Bus Fatal Error | Asserted", ["pci-errors"]),
        ("  1 | 12/24/2022 | 13:58:36 | Critical Interrupt #0x90 | Bus Fatal Error | Deasserted", []),
        ("  1 | 12/24/2022 | 13:58:36 | Event Logging Disabled #0x07 | Log area reset/cleared | Asserted", []),
        ("  1 | 12/24/2022 | 13:58:36 | Power Supply #0x51 | Power Supply AC lost | Asserted", ["host-hardware"]),
        ("FAN1             | 0.000      | RPM        | cr    | 300.000   | 500.000", ["host-hardware"]),
        ("FAN1             | 9000.000   | RPM        | ok    | 300.000   | 500.000", []),
        ("70,PWR_PSU0,Power Supply,0.00,W,'At or Below (<=) Lower Critical Threshold'", ["host-hardware"]),
        ("71,PWR_PSU1,Power Supply,780.00,W,'OK'", []),
    ],
)
def test_a_management_controller_is_read(line, wanted):
    assert told(f"{line}\n") == wanted


@pytest.mark.parametrize(("state", "wanted"), [("Critical", ["host-hardware"]), ("Nominal", [])])
def test_states_that_freeipmi_names_are_read(state, wanted):
    head = "ID  | Name           | Type     | State    | Reading | Units | Event\n"
    assert told(f"{head}1   | SysHealth_Stat | Chassis  | {state} | N/A     | N/A   | 'transition'\n") == wanted


def test_a_node_that_a_lid_leads_to_and_that_does_not_answer_is_down():
    assert told("ibwarn: [7] mad_rpc: _do_madrpc failed; dport (Lid 15)\n") == ["port-down"]


def test_queues_that_drop_much_are_told_whatever_their_class():
    head = (
        "       Port    TxQ    Counter/pkts    Counter/bytes    Drop/pkts     Drop/bytes\n"
        "-----------  -----  --------------  ---------------  -----------  -------------\n"
    )
    row = "Ethernet196    {0}     32025737389   13638863007480   {1:>10}  2893444514176\n"
    assert told(head + row.format("UC1", 6841131615)) == ["discards"]
    assert told(head + row.format("UC1", 68411)) == []
    assert told(head + row.format("UC3", 68411)) == ["discards"]  # one that is lossless


def test_what_a_peer_suffers_stands_beneath_the_fault_of_the_other_host(tmp_path):
    (tmp_path / "host-1").mkdir()
    flaps = "".join(
        f"[9{n}.1] mlx5_core 0000:81:00.0 ens5: Link {'up' if n % 2 else 'down'}\n" for n in range(10, 18)
    )
    (tmp_path / "host-1" / "dmesg.txt").write_text(flaps)
    line = "host-2:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4> with status=12"
    (tmp_path / "nccl.log").write_text(
        f"host-2:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n{line} opcode=129\n"
    )
    first = judged(read_paths([tmp_path]), twin=False).findings[0]
    assert (first.id, [one.id for one in first.consequences]) == ("link-flapping", ["transport-retry"])
    (tmp_path / "host-1" / "dmesg.txt").write_text("[1.5] mlx5_core 0000:81:00.0 ens5: Link up\n")
    assert judged(read_paths([tmp_path]), twin=False).findings[0].id == "transport-retry"


@pytest.mark.parametrize(
    ("flags", "ports", "wanted"), [("D", "Et1/1(G-)", ["port-down"]), ("D", "", []), ("U", "Et1/1(PG+)", [])]
)
def test_bundles_that_are_down_are_told_where_they_have_ports(flags, ports, wanted):
    assert (
        told(
            f"Port-Channel Protocol  Ports\n------------ --------- ------\nPo25({flags})      LACP(a)    {ports}\n"
        )
        == wanted
    )


def test_a_driver_that_speaks_between_counters_is_heard():
    text = "NIC statistics:\n     rx_crc_errors_phy: 0\n"
    said = "mlx5_core 0000:81:00.0: port_module:252:(pid 0): Port module event[error]: module 0, Cable error, {}\n"
    assert told(text + said.format("Power budget exceeded")) == ["module-fault"]


def test_descriptions_of_several_words_do_not_shift_neighbours():
    head = "  Description              Neighbor         V  AS   MsgRcvd   MsgSent  InQ OutQ  Up/Down State   PfxRcd PfxAcc\n"
    row = "  RTR 6 to 5               192.0.2.6        4  64497.234        151       230    0    0 02:54:01 {}\n"
    assert told(head + row.format("Estab   12     16")) == []
    assert answer(head + row.format("Active")).findings[0].object == "192.0.2.6"


def test_what_a_driver_and_a_bond_say_of_one_link_is_one_event():
    down = "[262013.37] eth3: Link is down\n[262013.60] bonding: bond0: link status definitely down for interface eth3, x\n"
    up = "[262015.07] eth3: Link is up, running at 100Mbit\n[262015.29] bonding: bond0: link status definitely up for interface eth3.\n"
    assert told(down + up) == []
    assert told(down) == ["port-down"]
    assert told((down + up) * 3)[:1] == ["link-flapping"]


TEXTS = (
    module([-40.0] * 4), peers("CNS"), events("ERRORS_LINKS", "LINK_UNEXPECTED_WIDTH", "2x"), OSPF + "10.0.0.3 1 Init/- 9s 3s 1.1.1.1 eth2\n",
    "index, name, pcie.link.width.current\n0, NVIDIA H100, 8\n", "ID | Name | State\n1 | Fan | Critical\n",
    "Kernel Interface table\nIface MTU RX-OK RX-ERR RX-DRP RX-OVR TX-OK TX-ERR TX-DRP TX-OVR Flg\neth0 9000 1 2 3 4 5 6 7 8 BMRU\n",
    '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "PCIe", "results": [{"status": "Fail"}]}]}]}}',
)  # fmt: skip


@given(seed=st.integers(0, 2**32), which=st.sampled_from(TEXTS))
def test_no_reader_fails_on_spoilt_text(seed, which):
    draw = random.Random(seed)
    text = list(which)
    for _ in range(draw.randrange(1, 12)):
        at = draw.randrange(len(text))
        text[at] = draw.choice(
            ["", "\n", "\r\n", ":", "|", ",", "9" * 30, "-", "\x1b[31m", "%", "\x00", "(", "é", "1e999"]
        )
    spoilt = "".join(text)
    assert answer(spoilt).as_data() == answer(spoilt).as_data()


@pytest.mark.parametrize(
    ("run", "found"),
    [
        ({"runtime_error": "the driver is too old"}, ("cuda-driver-old", "the driver is too old")),
        ({"test_categories": [{"tests": [{"name": "memory", "results": [{"entity_id": 3, "status": "Fail"}]}]}]},
         ("gpu-memory", "DCGM: memory: Fail - GPU: 3 ")),
        ({"test_categories": [{"tests": [{"name": "pcie", "results": [{"entity_id": 3, "status": "Fail"}],
          "test_summary": {"status": "Fail", "warnings": [{"warning": "GPU 3 had uncorrectable memory errors and row remapping failed."}]}}]}]},
         ("gpu-memory", "GPU 3 had uncorrectable memory errors and row remapping failed.")),
    ],
)  # fmt: skip
def test_a_diagnostic_in_json_that_did_not_run_or_says_why_in_its_summary(tmp_path, run, found):
    (tmp_path / "diag.json").write_text(json.dumps({"DCGM Diagnostic": run}))
    (first, *_) = judged(read_paths([tmp_path / "diag.json"]), twin=False).findings
    assert (first.id, first.seen) == found
